//! The mounts that the containers of the cluster share: volumes, and directories of the host.

use std::fmt;
use std::path::Path;

use sys::proc::parse::Mount;

/// A mount of the new container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SharedMount {
    source: Source,
    pub(super) target: String,
    read_only: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    Volume(String),
    /// A directory or file of the host.
    Host(String),
}

/// Formats the option of docker run. `-v` would create a directory that is missing on the host; `--mount` fails.
impl fmt::Display for SharedMount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, target, read_only } = self;
        match source {
            Source::Volume(name) => write!(f, "-v {name}:{target}{}", if *read_only { ":ro" } else { "" }),
            Source::Host(path) => {
                write!(
                    f,
                    "--mount type=bind,source={path},target={target}{}",
                    if *read_only { ",readonly" } else { "" }
                )
            }
        }
    }
}

impl SharedMount {
    /// Parses `SOURCE:TARGET` or `SOURCE:TARGET:ro`, as for `docker run --volume`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let error =
            || "not a mount; use SOURCE:/TARGET or SOURCE:/TARGET:ro, with letters, digits and / . _ - only".to_owned();
        let (text, read_only) = text.strip_suffix(":ro").map_or((text, false), |text| (text, true));
        let (source, target) = text.split_once(':').ok_or_else(error)?;
        let is_valid = is_plain(source) && is_plain(target) && target.starts_with('/');
        let source = if source.starts_with('/') { Source::Host(source.into()) } else { Source::Volume(source.into()) };
        is_valid.then(|| Self { source, target: target.to_owned(), read_only }).ok_or_else(error)
    }

    /// The shared mounts of this container. `private` are directories that are not shared, such as its state.
    pub(super) fn of_container(mountinfo: &str, private: &[&Path]) -> Vec<Self> {
        let is_private = |path: &str| private.iter().any(|directory| Path::new(path).starts_with(directory));
        let shared_mount = |mount: Mount<'_>| {
            let Mount { from, at, read_only, .. } = mount;
            let is_engine_mount = at == "/"
                || ["/proc", "/sys", "/dev", "/run", "/etc"].iter().any(|top| Path::new(&at).starts_with(top));
            // If the root of a file system is mounted, its path on the host is unknown.
            if is_engine_mount || is_private(&at) || from == "/" || !is_plain(&from) || !is_plain(&at) {
                return None;
            }
            let volume =
                from.strip_suffix("/_data").and_then(|path| path.rsplit_once("/volumes/")).map(|(_, name)| name);
            let source = match volume {
                Some(name) if !name.contains('/') => Source::Volume(name.to_owned()),
                _ => Source::Host(from),
            };
            Some(Self { source, target: at, read_only })
        };
        Mount::all(mountinfo).filter_map(shared_mount).collect()
    }
}

/// Whether the path has no characters that are special to a shell or docker.
fn is_plain(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '/')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "1 0 0:1 / / rw - overlay overlay rw\n2 1 0:2 / /proc rw - proc proc rw\n\
        3 1 254:0 /srv/lab/config /config ro,relatime - ext4 /dev/vda rw\n\
        4 1 254:0 /var/lib/docker/volumes/lab_data/_data /data rw - ext4 /dev/vda rw\n\
        5 1 254:0 /var/lib/docker/volumes/lab_state/_data /var/lib/slurm rw - ext4 /dev/vda rw\n\
        6 1 254:0 /var/lib/docker/volumes/lab_munge-key/_data /etc/munge rw - ext4 /dev/vda rw\n\
        7 1 254:0 /var/lib/docker/containers/9f/hosts /etc/hosts rw - ext4 /dev/vda rw\n\
        8 1 0:9 / /scratch rw - nfs4 server:/export rw\n\
        9 1 254:0 /srv/a;b /srv rw - ext4 /dev/vda rw\n";

    #[test]
    fn copies_shared_mounts_only() {
        let shared_mounts = SharedMount::of_container(MOUNTS, &[Path::new("/var/lib/slurm")]);
        let options: Vec<String> = shared_mounts.iter().map(ToString::to_string).collect();
        assert_eq!(options, ["--mount type=bind,source=/srv/lab/config,target=/config,readonly", "-v lab_data:/data"]);
    }

    #[test]
    fn volume_has_no_shell_characters() {
        let option = |text| SharedMount::parse(text).map(|mount| mount.to_string());
        assert_eq!(option("lab_data:/data").unwrap(), "-v lab_data:/data");
        assert_eq!(option("/srv/x:/config:ro").unwrap(), "--mount type=bind,source=/srv/x,target=/config,readonly");
        for bad in ["", "data", "data:data", "a b:/data", "$(x):/data", "-x:/data", "a:/b,c"] {
            assert!(option(bad).is_err(), "{bad}");
        }
    }
}
