//! config/slurminit.toml as a list of tables, keys and what is said about them.

/// The file.
pub(crate) struct Example {
    /// Its tables and keys, in order.
    pub(crate) entries: Vec<Entry>,
    /// Its text with all defaults and examples made effective.
    pub(crate) uncommented: String,
}

pub(crate) enum Entry {
    Table {
        /// As in the file: `[gpu]`, `[[user]]`.
        heading: String,
        doc: String,
    },
    /// Keys, one below the other, that one comment explains.
    Keys { keys: Vec<Key>, doc: String },
}

pub(crate) struct Key {
    pub(crate) name: String,
    /// With its table: `gpu.gres`, `user.uid`.
    pub(crate) path: String,
    /// `None` for a key whose value here is an example.
    pub(crate) default: Option<String>,
}

impl Example {
    /// Comments are `# text`, defaults `#key = value`, examples `#:key = value`; `#[table]` and `#:[table]` alike.
    pub(crate) fn parse(text: &str) -> Self {
        let mut example = Self { entries: Vec::new(), uncommented: String::new() };
        let (mut doc, mut table) = (Vec::new(), String::new());
        for line in text.lines() {
            let is_effective = |rest: &&str| rest.starts_with(|c: char| c == '[' || c.is_ascii_lowercase());
            let (effective, is_default) = match (line.strip_prefix("#:"), line.strip_prefix('#').filter(is_effective)) {
                (Some(effective), _) => (effective, false),
                (None, Some(effective)) => (effective, true),
                (None, None) => {
                    match line.strip_prefix("# ") {
                        Some(words) => doc.push(words),
                        None => doc.clear(),
                    }
                    continue;
                }
            };
            example.uncommented += &format!("{effective}\n");
            let said = std::mem::take(&mut doc).join("\n");
            if effective.starts_with('[') {
                table = format!("{}.", effective.trim_matches(['[', ']']));
                example.entries.push(Entry::Table { heading: effective.to_owned(), doc: said });
                continue;
            }
            let (name, value) = effective.split_once(" = ").unwrap_or((effective, ""));
            let default = is_default.then(|| value.to_owned());
            let key = Key { name: name.to_owned(), path: format!("{table}{name}"), default };
            match example.entries.last_mut() {
                Some(Entry::Keys { keys, .. }) if said.is_empty() => keys.push(key),
                _ => example.entries.push(Entry::Keys { keys: vec![key], doc: said }),
            }
        }
        example
    }

    /// The paths of the tables.
    pub(crate) fn tables(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().filter_map(|entry| match entry {
            Entry::Table { heading, .. } => Some(heading.trim_matches(['[', ']'])),
            Entry::Keys { .. } => None,
        })
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.entries.iter().flat_map(|entry| match entry {
            Entry::Keys { keys, .. } => keys.as_slice(),
            Entry::Table { .. } => &[],
        })
    }
}
