//! Finds the files of an image by the value of `--container`.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;
use serde::Deserialize;
use sys::trusted_path;

use super::RuntimeError;
use super::binds::Bind;
use crate::{ImageName, ImageRecord, Puller, Reference, SCHEME, Store};

/// The files, variables and mounts of the image of a step.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Bundle {
    /// The directory of the image's files.
    pub root: PathBuf,
    /// The image's variables, `NAME=VALUE`.
    pub environment: Vec<String>,
    /// The bind mounts of the bundle.
    pub mounts: Vec<Bind>,
    /// Whether the files are read-only.
    pub is_read_only: bool,
}

/// The part of an OCI bundle's config.json that is used (OCI runtime-spec 1.2). The other settings are set by Slurm, or need
/// rights that jobs do not have.
#[derive(Debug, Deserialize)]
struct Configuration {
    root: Root,
    #[serde(default)]
    process: Process,
    #[serde(default)]
    mounts: Vec<Mount>,
}

#[derive(Debug, Deserialize)]
struct Root {
    path: PathBuf,
    #[serde(default)]
    readonly: bool,
}

#[derive(Debug, Default, Deserialize)]
struct Process {
    #[serde(default)]
    env: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Mount {
    destination: PathBuf,
    #[serde(default)]
    source: PathBuf,
    #[serde(default)]
    options: Vec<String>,
}

impl Bundle {
    /// Finds the image of a step: `docker://...` for a registry, a path (as in Slurm, a value with a `/`), or a name.
    pub(super) fn find(value: &OsStr, stores: &[Store], puller: impl FnOnce() -> Puller) -> Result<Self, RuntimeError> {
        if let Some(text) = value.to_str().filter(|text| text.starts_with(SCHEME)) {
            let reference = text.parse::<Reference>();
            let reference =
                reference.map_err(|why| RuntimeError::Reference { text: model::printable::short(text, 200), why })?;
            return Self::pulled(&reference, stores, puller);
        }
        if value.as_encoded_bytes().contains(&b'/') {
            return Self::at(Path::new(value));
        }
        let no_image = || {
            let directories: Vec<String> = stores.iter().map(|store| store.path().display().to_string()).collect();
            let name = model::printable::short(&value.to_string_lossy(), 80);
            RuntimeError::NoImage { name, directories: directories.join(" and ") }
        };
        let name: ImageName = value.to_str().and_then(|text| text.parse().ok()).ok_or_else(no_image)?;
        Self::named(&name, stores)?.ok_or_else(no_image)
    }

    /// The image with this name in the first store that has it.
    fn named(name: &ImageName, stores: &[Store]) -> Result<Option<Self>, RuntimeError> {
        for store in stores {
            if let Some(record) = store.find(name)? {
                return Ok(Some(Self::of(store, name, record)));
            }
        }
        Ok(None)
    }

    /// The image of a registry, which is pulled first if no store has it.
    fn pulled(reference: &Reference, stores: &[Store], puller: impl FnOnce() -> Puller) -> Result<Self, RuntimeError> {
        let name = reference.name();
        if let Some(bundle) = Self::named(&name, stores)? {
            return Ok(bundle);
        }
        let puller = puller();
        let record = puller.ensure(&name, reference)?;
        Ok(Self::of(&puller.importer.store, &name, record))
    }

    fn of(store: &Store, name: &ImageName, record: ImageRecord) -> Self {
        Self { root: store.rootfs(name), environment: record.environment, ..Self::default() }
    }

    /// The image at a path: an OCI bundle, the directory of an image in a store, or a file tree.
    fn at(path: &Path) -> Result<Self, RuntimeError> {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let metadata = fs::metadata(&path).and_then(|metadata| match metadata.is_dir() {
            true => Ok(()),
            false => Err(nix::Error::ENOTDIR.into()),
        });
        metadata.map_err(|error| RuntimeError::NoBundle { path: path.clone(), error })?;
        require_own_content_of_root(&path)?;
        let file = path.join("config.json");
        let bundle = if file.is_file() {
            let read = |error| RuntimeError::Read { path: file.clone(), error };
            let text = trusted_path::read(&file).map_err(read)?;
            Self::parse(&text, &path).map_err(|error| RuntimeError::Configuration { path, why: error.to_string() })?
        } else {
            let rootfs = path.join(crate::store::ROOTFS);
            Self { root: if rootfs.is_dir() { rootfs } else { path }, ..Self::default() }
        };
        require_own_content_of_root(&bundle.root)?;
        Ok(bundle)
    }

    /// Parses the config.json of the bundle at `path`.
    ///
    /// # Errors
    /// The text is not valid.
    pub fn parse(text: &[u8], path: &Path) -> serde_json::Result<Self> {
        let parsed: Configuration = serde_json::from_slice(text)?;
        let has =
            |mount: &Mount, options: &[&str]| mount.options.iter().any(|option| options.contains(&option.as_str()));
        let binds = parsed.mounts.into_iter().filter(|mount| has(mount, &["bind", "rbind"]));
        let bind = |mount: Mount| {
            let is_read_only = has(&mount, &["ro", "rro"]);
            // runtime-spec: a relative source is relative to the bundle. Some tools write a destination without a leading `/`.
            Bind { from: path.join(mount.source), to: Path::new("/").join(mount.destination), is_read_only }
        };
        Ok(Self {
            root: path.join(parsed.root.path),
            environment: parsed.process.env,
            mounts: binds.map(bind).collect(),
            is_read_only: parsed.root.readonly,
        })
    }
}

/// Fails if this process runs as root and another user could change the path. Users other than root may run whatever is at a path, as with any
/// program.
fn require_own_content_of_root(path: &Path) -> Result<(), RuntimeError> {
    if !geteuid().is_root() {
        return Ok(());
    }
    match trusted_path::open(Path::new("/"), path).and_then(|directory| directory.require_own_content()) {
        Err(error) if !error.is_missing() => Err(RuntimeError::Untrusted(error)),
        _ => Ok(()),
    }
}

/// Splits `NAME=VALUE` into the name and the value.
pub(super) fn variable(text: &str) -> Option<(OsString, OsString)> {
    let (name, value) = text.split_once('=')?;
    Some((name.into(), value.into()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, chown};

    use super::*;

    #[test]
    fn finds_root_of_bundle_or_file_tree() {
        let directory = crate::tests::scratch();
        let path = directory.path().join("tree");
        fs::create_dir_all(&path).unwrap();
        let find = |path: &Path| Bundle::find(path.as_os_str(), &[], || unreachable!("a path"));
        assert_eq!(find(&path).unwrap().root, path);
        fs::create_dir(path.join("rootfs")).unwrap();
        assert_eq!(find(&path).unwrap().root, path.join("rootfs"));
        let text = r#"{"ociVersion":"1.0.0","root":{"path":"other","readonly":true},"process":{"env":["A=1"],"args":["x"]},
            "mounts":[{"destination":"/b","source":"/a","options":["bind","ro"]},{"destination":"/proc","type":"proc"}]}"#;
        fs::write(path.join("config.json"), text).unwrap();
        let bundle = find(&path).unwrap();
        assert_eq!(bundle.root, path.join("other"));
        assert_eq!(bundle.environment, ["A=1"]);
        assert_eq!(bundle.mounts, [Bind { from: "/a".into(), to: "/b".into(), is_read_only: true }]);
        assert!(bundle.is_read_only);
        fs::write(path.join("config.json"), "{").unwrap();
        assert!(matches!(find(&path), Err(RuntimeError::Configuration { .. })));
        assert!(matches!(find(&directory.path().join("missing")), Err(RuntimeError::NoBundle { .. })));
        let find = |text: &str| Bundle::find(text.as_ref(), &[], || unreachable!("{text}"));
        assert!(matches!(find("missing"), Err(RuntimeError::NoImage { .. })));
        assert!(matches!(find("docker://a b"), Err(RuntimeError::Reference { .. })));
    }

    #[test]
    fn root_runs_no_bundle_of_another_user() {
        let directory = crate::tests::scratch();
        let path = directory.path().join("tree");
        fs::create_dir_all(path.join("rootfs")).unwrap();
        let find = || Bundle::find(path.as_os_str(), &[], || unreachable!("a path"));
        find().unwrap();
        for foreign in [path.join("rootfs"), path.clone()] {
            chown(&foreign, Some(1234), None).unwrap();
            assert!(matches!(find(), Err(RuntimeError::Untrusted(_))), "{}", foreign.display());
            chown(&foreign, Some(0), None).unwrap();
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(find(), Err(RuntimeError::Untrusted(_))));
    }

    #[test]
    fn pulled_image_is_found_by_its_reference() {
        let directory = crate::tests::scratch();
        let reference: Reference = "registry.lab/tools:1".parse().unwrap();
        let importer = crate::tests::importer(&directory, 1 << 20);
        let source = directory.path().join("source");
        fs::create_dir(&source).unwrap();
        fs::write(source.join("file"), "x").unwrap();
        importer.import(&reference.name(), crate::Source::Path(source)).unwrap();
        let stores = [importer.store.clone()];
        let value = format!("{SCHEME}{reference}");
        let bundle = Bundle::find(value.as_ref(), &stores, || unreachable!("it was pulled before")).unwrap();
        assert_eq!(bundle.root, importer.store.rootfs(&reference.name()));
    }
}
