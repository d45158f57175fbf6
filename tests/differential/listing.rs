//! The output of `slurmd -G`.

/// One GRES line of the listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) file: String,
    pub(crate) gres_type: String,
    pub(crate) cores: String,
    pub(crate) links: String,
    pub(crate) flags: String,
}

impl Record {
    /// Parses `Gres Name=gpu Type=nvidia_h200 Count=1 ... Flags=...` after any prefix.
    fn parse(line: &str) -> Option<Self> {
        let (_, fields) = line.split_once("Gres Name=gpu ")?;
        let field = |name: &str| {
            let value = fields.split(' ').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
            value.map(str::to_owned)
        };
        Some(Self {
            file: field("File")?,
            gres_type: field("Type")?,
            // Optional fields.
            cores: field("Cores").unwrap_or_default(),
            links: field("Links").unwrap_or_default(),
            flags: field("Flags")?,
        })
    }
}

/// The GPUs of a listing, in its order. `slurmd -G` prints to standard error.
pub(crate) fn records(listing: &str) -> Vec<Record> {
    listing.lines().filter_map(Record::parse).collect()
}
