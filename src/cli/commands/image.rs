//! `slurminit image`: container images for jobs.

use std::io::{IsTerminal as _, Read};
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::columns::{Column, dash, format_table};
use super::{Configuration, print_value};
use crate::output::error_line;
use config::Config;
use images::{ImageName, ImageRecord, Importer, Listing, Puller, Reference, SCHEME, Source, Store};
use model::printable;
use watch::agent;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: ImageVerb,
}

#[derive(Debug, clap::Subcommand)]
enum ImageVerb {
    /// Import an image: for all users if you are root, otherwise for yourself
    Import {
        /// The name for `--container=NAME`
        name: ImageName,
        /// An archive of `docker save`, `docker export` or an OCI layout, or a directory; - is standard input
        #[arg(default_value = "-")]
        from: PathBuf,
        /// Replace an image of the same name
        #[arg(long)]
        replace: bool,
        /// Print the image's record as JSON
        #[arg(long)]
        json: bool,
    },
    /// Pull an image from a registry: for all users if you are root, otherwise for yourself. Pulls it again if it was pulled before, unless
    /// IMAGE contains a digest and --name is not used
    Pull {
        /// The image, such as docker://ghcr.io/owner/image:tag
        #[arg(value_name = "IMAGE")]
        reference: Reference,
        /// A name for `--container=NAME`; without it, `--container=IMAGE` uses the image
        #[arg(long)]
        name: Option<ImageName>,
        /// Replace an image of the same name
        #[arg(long, requires = "name")]
        replace: bool,
        /// Print the image's record as JSON
        #[arg(long)]
        json: bool,
    },
    /// List the images that this user's jobs can use
    List {
        /// Print everything as JSON
        #[arg(long)]
        json: bool,
    },
    /// Show an image: size, origin, architecture, program, variables
    Show {
        /// The image: its name, or docker://...
        #[arg(value_parser = image_name)]
        name: ImageName,
        /// Print everything as JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove an image; a running job that uses the image loses access to its files
    Remove {
        /// The image: its name, or docker://...
        #[arg(value_parser = image_name)]
        name: ImageName,
        /// Print the image's record as JSON
        #[arg(long)]
        json: bool,
    },
}

pub(crate) fn run(args: Args, configuration: &Configuration) -> anyhow::Result<()> {
    let images = match configuration.load() {
        Ok(config) => config.images,
        // With the defaults, root could import into a directory other than the configured one.
        Err(error) if nix::unistd::geteuid().is_root() => return Err(error.into()),
        // Users may not be able to read the operator's file, and a broken file must not prevent them from using their
        // images.
        Err(_) => Config::default().images,
    };
    let stores = stores(images.directory);
    match args.verb {
        ImageVerb::Import { name, from, replace, json } => {
            let importer = Importer { replaces: replace, ..importer(stores) };
            let record = importer.import(&name, source(from)?);
            print_imported(json, name.as_str(), &record.with_context(|| format!("cannot import image {name}"))?)
        }
        ImageVerb::Pull { reference, name, replace, json } => {
            let importer = Importer { replaces: replace || name.is_none(), ..importer(stores) };
            let report = |line: &str| error_line(format_args!("slurminit: {line}"));
            let puller = Puller { importer, environment: None, report };
            let record = match &name {
                Some(name) => puller.pull(name, &reference)?,
                None if reference.is_pinned() => puller.ensure(&reference.name(), &reference)?,
                None => puller.pull(&reference.name(), &reference)?,
            };
            print_imported(json, &name.map_or_else(|| format!("{SCHEME}{reference}"), |name| name.to_string()), &record)
        }
        ImageVerb::List { json } => {
            let (mut entries, mut is_complete) = (Vec::new(), true);
            for store in &stores {
                let entry = |record| ImageEntry { store: store.path().to_owned(), record };
                let Listing { images, untrusted } = store.list()?;
                is_complete &= untrusted.is_empty();
                untrusted.iter().for_each(|error| error_line(format_args!("slurminit: warning: {error}")));
                entries.extend(images.into_iter().map(entry));
            }
            print_value(json, &serde_json::json!({ "images": entries }), || table(&entries, is_complete))
        }
        ImageVerb::Show { name, json } => {
            let (store, record) = find(&stores, &name)?;
            let entry = ImageEntry { store: store.path().to_owned(), record };
            print_value(json, &entry, || description(&entry))
        }
        ImageVerb::Remove { name, json } => {
            // Even an unusable image can be removed.
            let store = stores.iter().find(|store| store.has(&name)).ok_or_else(|| no_image(&stores, &name))?;
            let unknown = || ImageRecord { name: name.to_string(), ..ImageRecord::default() };
            let record = store.find(&name).ok().flatten().unwrap_or_else(unknown);
            store.remove(&name)?;
            print_value(json, &record, || format!("removed {name} from {}\n", store.path().display()))
        }
    }
}

/// An image and the directory of its store.
#[derive(serde::Serialize)]
struct ImageEntry {
    store: PathBuf,
    #[serde(flatten)]
    record: ImageRecord,
}

/// The stores in the order in which a name is looked up: the user's own first.
fn stores(shared: PathBuf) -> Vec<Store> {
    let shared = Store::shared(shared);
    let is_root = nix::unistd::geteuid().is_root();
    let home = std::env::var_os("HOME").filter(|home| !is_root && !home.is_empty());
    home.map(|home| Store::of_user(home.as_ref())).into_iter().chain([shared]).collect()
}

fn find<'a>(stores: &'a [Store], name: &ImageName) -> anyhow::Result<(&'a Store, ImageRecord)> {
    for store in stores {
        if let Some(record) = store.find(name)? {
            return Ok((store, record));
        }
    }
    Err(no_image(stores, name))
}

fn no_image(stores: &[Store], name: &ImageName) -> anyhow::Error {
    let directories: Vec<String> = stores.iter().map(|store| store.path().display().to_string()).collect();
    anyhow::anyhow!("no image {name} in {}; `slurminit image list` shows the images", directories.join(" or "))
}

fn print_imported(json: bool, name: &str, record: &ImageRecord) -> anyhow::Result<()> {
    let (files, size) = (record.files, size(record));
    let skipped = match record.skipped {
        0 => String::new(),
        1 => " (1 device node or FIFO left out)".to_owned(),
        count => format!(" ({count} device nodes and FIFOs left out)"),
    };
    print_value(json, record, || {
        format!("imported {name}: {size}, number of files: {files}{skipped}; use it with `srun --container={name}`\n")
    })
}

fn source(from: PathBuf) -> anyhow::Result<Source> {
    Ok(if from.as_os_str() == "-" {
        let input = std::io::stdin();
        anyhow::ensure!(
            !input.is_terminal(),
            "no archive: standard input is a terminal; pipe `docker save IMAGE` into it, or name a file or directory"
        );
        Source::Stream(Box::new(input) as Box<dyn Read>)
    } else if is_descriptor(&from) {
        let pipe = std::fs::File::open(&from).with_context(|| format!("cannot open {}", from.display()))?;
        Source::Stream(Box::new(pipe))
    } else {
        Source::Path(from)
    })
}

/// Whether a path is an open file of this process, such as the shell's `<(docker save IMAGE)`.
fn is_descriptor(path: &Path) -> bool {
    path == Path::new("/dev/stdin") || ["/dev/fd", "/proc/self/fd"].iter().any(|directory| path.starts_with(directory))
}

/// An importer that imports into the first of these stores.
fn importer(mut stores: Vec<Store>) -> Importer {
    Importer::new(stores.remove(0), agent::unix())
}

/// Parses the name of an image, or a `docker://...` reference, which becomes the name under which that image was pulled.
fn image_name(text: &str) -> Result<ImageName, String> {
    match text.starts_with(SCHEME) {
        true => Ok(text.parse::<Reference>()?.name()),
        false => text.parse(),
    }
}

fn size(record: &ImageRecord) -> String {
    format!("{} MiB", record.bytes.div_ceil(1 << 20))
}

/// The list of images. `is_complete`: no unusable image was left out.
fn table(entries: &[ImageEntry], is_complete: bool) -> String {
    const COLUMNS: [Column; 4] = [
        Column::left("NAME", 4, 30),
        Column::right("SIZE", 10),
        Column::left("BY", 2, 12),
        Column::left("FROM", 4, 60),
    ];
    match (entries, is_complete) {
        ([], true) => {
            return "no images; import one with `docker save IMAGE | slurminit image import NAME`\n".to_owned();
        }
        ([], false) => return "no usable images; see the warnings\n".to_owned(),
        _ => {}
    }
    let rows: Vec<[String; 4]> = entries
        .iter()
        .map(|ImageEntry { record, .. }| {
            let origin = if record.reference.is_empty() { dash() } else { record.reference.clone() };
            [record.name.clone(), size(record), record.imported_by.clone(), origin]
        })
        .collect();
    format_table(&COLUMNS, &rows)
}

fn description(entry: &ImageEntry) -> String {
    let record = &entry.record;
    let lines = [
        ("name", record.name.clone()),
        ("directory", entry.store.join(&record.name).display().to_string()),
        ("from", record.reference.clone()),
        ("digest", record.digest.clone()),
        (
            "size",
            format!(
                "{}, {}, {}",
                size(record),
                printable::count(record.files, "file"),
                printable::count(record.layers, "layer")
            ),
        ),
        ("architecture", record.architecture.clone()),
        ("created", record.created.clone()),
        ("imported by", record.imported_by.clone()),
        ("user", record.user.clone()),
        ("entry point", record.entrypoint.join(" ")),
        ("command", record.command.join(" ")),
        ("work directory", record.directory.clone()),
        ("variables", record.environment.join(" ")),
    ];
    let shown = lines.iter().filter(|(_, value)| !value.is_empty());
    shown.map(|(label, value)| format!("{label:<16}{}\n", printable::line(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_file_of_this_process_is_read_as_stream() {
        for path in ["/dev/stdin", "/dev/fd/63", "/proc/self/fd/63"] {
            assert!(is_descriptor(Path::new(path)), "{path}");
        }
        assert!(!["/dev/fdx", "/proc/self", "stdin"].into_iter().any(|path| is_descriptor(Path::new(path))));
    }

    #[test]
    fn image_is_named_by_its_name_or_registry() {
        assert_eq!(image_name("tools").unwrap().as_str(), "tools");
        let reference: Reference = "docker://ghcr.io/lab/tools:1".parse().unwrap();
        assert_eq!(image_name("docker://ghcr.io/lab/tools:1").unwrap(), reference.name());
        assert!(image_name("docker://").is_err() && image_name("a b").is_err());
    }

    #[test]
    fn empty_list_mentions_unusable_images() {
        assert!(table(&[], true).starts_with("no images; import one"));
        assert_eq!(table(&[], false), "no usable images; see the warnings\n");
    }
}
