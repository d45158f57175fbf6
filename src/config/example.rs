//! config/reference.toml as a list of tables and keys with their comments.

/// The parsed config/reference.toml.
#[derive(Debug)]
pub struct Example {
    /// The tables and keys, in the order of the file.
    pub entries: Vec<Entry>,
    /// The defaults, uncommented, without the explanations and examples.
    pub defaults: String,
    /// The defaults and examples, uncommented, without the explanations.
    pub uncommented: String,
}

/// A table, or keys of a table.
#[derive(Debug)]
pub enum Entry {
    /// A table.
    Table {
        /// The line without its comment prefix: `[gpu]`, `[[user]]`.
        heading: String,
        /// Whether the table is a default, not an example.
        is_default: bool,
        /// The comment that explains the table.
        doc: String,
    },
    /// Consecutive keys that one comment explains.
    Keys {
        /// The keys, in the order of the file.
        keys: Vec<Key>,
        /// The comment that explains the keys.
        doc: String,
    },
}

/// A key, with its default.
#[derive(Debug)]
pub struct Key {
    /// The key without its table.
    pub name: String,
    /// The key with its table: `gpu.gres`, `user.uid`.
    pub path: String,
    /// `None` for a key whose value in the file is an example.
    pub default: Option<String>,
}

impl Example {
    /// Comments are `# text`, defaults `#key = value`, examples `#:key = value`; tables use the same prefixes: `#[table]` and `#:[table]`. The line
    /// `#:schema FILE` is for editors.
    pub fn parse(text: &str) -> Self {
        let mut example = Self { entries: Vec::new(), defaults: String::new(), uncommented: String::new() };
        let (mut doc, mut table) = (Vec::new(), String::new());
        for line in text.lines().filter(|line| !line.starts_with("#:schema ")) {
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
            if is_default {
                example.defaults += &format!("{effective}\n");
            }
            let text = std::mem::take(&mut doc).join("\n");
            if effective.starts_with('[') {
                table = format!("{}.", effective.trim_matches(['[', ']']));
                example.entries.push(Entry::Table { heading: effective.to_owned(), is_default, doc: text });
                continue;
            }
            let (name, value) = effective.split_once(" = ").unwrap_or((effective, ""));
            let default = is_default.then(|| value.to_owned());
            let key = Key { name: name.to_owned(), path: format!("{table}{name}"), default };
            match example.entries.last_mut() {
                Some(Entry::Keys { keys, .. }) if text.is_empty() => keys.push(key),
                _ => example.entries.push(Entry::Keys { keys: vec![key], doc: text }),
            }
        }
        example
    }

    /// The paths of the tables.
    pub fn tables(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().filter_map(|entry| match entry {
            Entry::Table { heading, .. } => Some(heading.trim_matches(['[', ']'])),
            Entry::Keys { .. } => None,
        })
    }

    /// The keys, in order.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.entries.iter().flat_map(|entry| match entry {
            Entry::Keys { keys, .. } => keys.as_slice(),
            Entry::Table { .. } => &[],
        })
    }
}
