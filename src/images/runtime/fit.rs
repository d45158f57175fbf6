//! Whether an image fits the driver that the container runtime mounted: its CUDA release, and its C library.
//!
//! NVIDIA's container runtime refuses such a container. A job only gets a warning, because a package for forward compatibility in the image
//! may help, and because not every program of an image uses the GPU.

use std::fs;
use std::path::Path;

/// The CUDA release of the driver branches (NVIDIA's "CUDA Toolkit Release Notes", table 3, and CUDA 13's).
const RELEASES: [(u32, [u32; 2]); 18] = [
    (450, [11, 0]),
    (455, [11, 1]),
    (460, [11, 2]),
    (465, [11, 3]),
    (470, [11, 4]),
    (495, [11, 5]),
    (510, [11, 6]),
    (515, [11, 7]),
    (520, [11, 8]),
    (525, [12, 0]),
    (530, [12, 1]),
    (535, [12, 2]),
    (545, [12, 3]),
    (550, [12, 4]),
    (555, [12, 5]),
    (560, [12, 6]),
    (570, [12, 8]),
    (580, [13, 0]),
];

/// The loaders of glibc, without which none of the driver's libraries can be loaded.
const GLIBC: [&str; 6] = [
    "lib64/ld-linux-x86-64.so.2",
    "usr/lib64/ld-linux-x86-64.so.2",
    "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
    "lib/ld-linux-aarch64.so.1",
    "usr/lib/ld-linux-aarch64.so.1",
    "usr/lib/aarch64-linux-gnu/ld-linux-aarch64.so.1",
];

/// The warnings for an image at `root` with these variables, and a driver of this version (`550.54.15`).
pub(super) fn warnings(root: &Path, environment: &[String], driver: &str) -> Vec<String> {
    let glibc = (has_musl(root) && !has_glibc(root)).then(|| {
        "the image has no glibc, which the GPU driver's libraries need; use an image of Debian, Ubuntu or Red Hat"
            .to_owned()
    });
    cuda(environment, driver).into_iter().chain(glibc).collect()
}

fn has_glibc(root: &Path) -> bool {
    GLIBC.iter().any(|path| fs::symlink_metadata(root.join(path)).is_ok())
}

fn has_musl(root: &Path) -> bool {
    let names = fs::read_dir(root.join("lib")).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.into_iter().any(|name| name.as_encoded_bytes().starts_with(b"ld-musl-"))
}

fn cuda(environment: &[String], driver: &str) -> Option<String> {
    let variable = |name: &str| environment.iter().find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    let version = version(driver)?;
    let branch = *version.first()?;
    let (_, supported) = RELEASES.iter().rev().find(|(first, _)| *first <= branch)?;
    let is_newest = RELEASES.last().is_some_and(|(newest, _)| *newest <= branch);
    if is_newest || variable("NVIDIA_DISABLE_REQUIRE").is_some_and(|value| !value.is_empty()) {
        return None;
    }
    let required = match variable("NVIDIA_REQUIRE_CUDA") {
        Some(conditions)
            if alternatives(conditions)
                .any(|all| all.iter().all(|condition| condition.is_met(supported, &version))) =>
        {
            return None;
        }
        Some(conditions) => alternatives(conditions).flatten().find(|condition| condition.subject == "cuda")?.version,
        // Within a major release older drivers serve newer programs.
        None => {
            variable("CUDA_VERSION").and_then(self::version).filter(|release| release.first() > supported.first())?
        }
    };
    let required = required.iter().map(u32::to_string).collect::<Vec<_>>().join(".");
    let [major, minor] = supported;
    let driver: String = driver.chars().filter(|c| c.is_ascii_digit() || *c == '.').take(20).collect();
    Some(format!(
        "the image needs CUDA {required}, and the driver {driver} has {major}.{minor}: update the driver, or use an older image"
    ))
}

/// One condition of `NVIDIA_REQUIRE_CUDA`: `cuda>=12.8`.
struct Condition<'a> {
    subject: &'a str,
    operator: &'a str,
    version: Vec<u32>,
}

impl Condition<'_> {
    /// Whether the condition is met. Other subjects, such as the brand of the GPU, count as met.
    fn is_met(&self, cuda: &[u32], driver: &[u32]) -> bool {
        let actual = match self.subject {
            "cuda" => cuda,
            "driver" => driver,
            _ => return true,
        };
        // The required precision: driver 470.57 is 470.
        let order = actual.iter().take(self.version.len()).cmp(&self.version);
        match self.operator {
            ">=" => order.is_ge(),
            ">" => order.is_gt(),
            "<=" => order.is_le(),
            "<" => order.is_lt(),
            "!=" => order.is_ne(),
            _ => order.is_eq(),
        }
    }
}

/// Alternatives are separated by spaces, and the conditions of one by commas.
fn alternatives(text: &str) -> impl Iterator<Item = Vec<Condition<'_>>> {
    text.split_whitespace().map(|all| all.split(',').filter_map(condition).collect())
}

fn condition(text: &str) -> Option<Condition<'_>> {
    let begin = text.find(['<', '>', '=', '!'])?;
    let (subject, rest) = text.split_at(begin);
    let end = rest.find(|c: char| !"<>=!".contains(c))?;
    let (operator, value) = rest.split_at(end);
    Some(Condition { subject, operator, version: version(value).unwrap_or_default() })
}

fn version(text: &str) -> Option<Vec<u32>> {
    text.split('.').map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warning(variable: &str, driver: &str) -> Option<String> {
        cuda(&["PATH=/bin".to_owned(), variable.to_owned()], driver)
    }

    /// From NVIDIA's images of CUDA 12.4 and 12.8.
    const CUDA_12_4: &str =
        "NVIDIA_REQUIRE_CUDA=cuda>=12.4 brand=tesla,driver>=470,driver<471 brand=unknown,driver>=535,driver<536";

    #[test]
    fn warns_of_old_driver_with_required_version() {
        let text = warning("NVIDIA_REQUIRE_CUDA=cuda>=12.8 brand=tesla,driver>=535,driver<536", "550.54.15").unwrap();
        for fact in ["12.8", "550.54.15", "12.4"] {
            assert!(text.contains(fact), "{text}");
        }
        assert!(warning(CUDA_12_4, "525.60.13").is_some());
        assert!(warning("CUDA_VERSION=13.0.1", "570.10").is_some());
    }

    #[test]
    fn sufficient_or_unknown_driver_has_no_warning() {
        for (variable, driver) in [
            (CUDA_12_4, "550.54.15"),
            (CUDA_12_4, "560.28"),
            (CUDA_12_4, "535.104.05"),
            (CUDA_12_4, "470.57.02"),
            ("CUDA_VERSION=12.8.1", "525.60.13"),
            ("NVIDIA_REQUIRE_CUDA=cuda>=99.0", "590.44"),
            ("NVIDIA_REQUIRE_CUDA=", "550.54"),
            ("NVIDIA_REQUIRE_CUDA=cuda>=x,driver", "550.54"),
            ("NVIDIA_REQUIRE_CUDA=cuda>=12.8", "unknown"),
            ("NVIDIA_REQUIRE_CUDA=cuda>=12.8", "390.1"),
        ] {
            assert_eq!(warning(variable, driver), None, "{variable} {driver}");
        }
        let disabled = ["NVIDIA_REQUIRE_CUDA=cuda>=12.8".to_owned(), "NVIDIA_DISABLE_REQUIRE=1".to_owned()];
        assert_eq!(cuda(&disabled, "550.54"), None);
    }

    #[test]
    fn warns_of_musl_image_without_glibc() {
        let directory = crate::tests::scratch();
        let root = directory.path();
        assert_eq!(warnings(root, &[], "550.54").len(), 0);
        fs::create_dir_all(root.join("lib")).unwrap();
        fs::write(root.join("lib/ld-musl-x86_64.so.1"), "").unwrap();
        assert_eq!(warnings(root, &[], "550.54").len(), 1);
        fs::create_dir_all(root.join("lib64")).unwrap();
        std::os::unix::fs::symlink("/nowhere", root.join("lib64/ld-linux-x86-64.so.2")).unwrap();
        assert_eq!(warnings(root, &[], "550.54").len(), 0);
    }

    proptest::proptest! {
        #[test]
        fn no_requirement_string_panics(text in "[a-z0-9<>=!., ]{0,40}", driver in "[0-9.]{0,12}") {
            warning(&format!("NVIDIA_REQUIRE_CUDA={text}"), &driver);
        }
    }
}
