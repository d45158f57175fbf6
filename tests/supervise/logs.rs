//! The log: nobody who does not read it stops anything.

use super::*;
