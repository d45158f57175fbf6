//! Tests with the images of vendors and of other bases: docker/test --only vendors.

mod base_image;
