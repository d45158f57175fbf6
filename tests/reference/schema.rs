//! Generates config/slurminit.schema.json, which editors find by the `#:schema` line of slurminit.toml.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use config::example::{Entry, Example};
use config::{Config, EXAMPLE};
use serde_json::{Map, Value, json};

use manual::recorder::{Kind, RecordedKey};
use manual::reference::record_keys;

use super::{assert_generated, validator};

const FILE: &str = "config/slurminit.schema.json";

/// The input from which the schema is generated.
struct Source {
    /// config/reference.toml with all its examples uncommented.
    file: toml::Value,
    types: Vec<RecordedKey>,
    /// The comment and the default of each key or table, by path.
    docs: BTreeMap<String, (String, Option<String>)>,
}

impl Source {
    fn new() -> Self {
        let example = Example::parse(EXAMPLE);
        let file = toml::Value::Table(toml::from_str(&example.uncommented).unwrap());
        let mut types = record_keys(&file, None).unwrap();
        types.retain(|key| !key.is_missing);
        let docs = example.entries.iter().flat_map(|entry| match entry {
            Entry::Table { heading, doc, .. } => {
                vec![(heading.trim_matches(['[', ']']).to_owned(), (doc.clone(), None))]
            }
            Entry::Keys { keys, doc } => {
                keys.iter().map(|key| (key.path.clone(), (doc.clone(), key.default.clone()))).collect()
            }
        });
        let docs = docs.collect();
        Self { file, types, docs }
    }

    fn schema(&self) -> Value {
        let Value::Object(mut schema) = self.value("", &Kind::Table) else { unreachable!("a table is an object") };
        schema.insert("$schema".to_owned(), json!("http://json-schema.org/draft-07/schema#"));
        schema.insert("title".to_owned(), json!("slurminit.toml"));
        schema.into()
    }

    /// The direct children of `path` by name.
    fn children(&self, path: &str) -> BTreeMap<&str, &RecordedKey> {
        let below = |key: &'_ RecordedKey| {
            let rest = match path {
                "" => &key.path,
                path => key.path.strip_prefix(path)?.strip_prefix('.')?,
            };
            (!rest.is_empty() && !rest.contains('.')).then(|| key.path.len() - rest.len())
        };
        self.types.iter().filter_map(|key| Some((&key.path[below(key)?..], key))).collect()
    }

    fn value(&self, path: &str, kind: &Kind) -> Value {
        match kind {
            Kind::Boolean => json!({ "type": "boolean" }),
            Kind::Integer(min, i64::MAX) => json!({ "type": "integer", "minimum": min }),
            Kind::Integer(min, max) => json!({ "type": "integer", "minimum": min, "maximum": max }),
            Kind::Seconds => json!({ "type": "number", "minimum": 0 }),
            Kind::Text => json!({ "type": "string" }),
            Kind::Words(words) => json!({ "enum": words }),
            // These keys have empty lists as defaults, which do not show the item types.
            Kind::List(_) if ["gpu.only", "gpu.except"].contains(&path) => {
                json!({ "type": "array", "items": { "type": ["integer", "string"] } })
            }
            Kind::List(kind) => json!({ "type": "array", "items": self.value(path, kind) }),
            Kind::Various => various(path),
            Kind::Table => {
                let (properties, required) = self.properties(path, |_| true);
                table(&json!({ "properties": properties, "additionalProperties": false }), &required)
            }
            Kind::Free => self.free(path),
        }
    }

    /// Schema of a table that accepts any key, any key of an enum, or any key in addition to fixed ones.
    fn free(&self, path: &str) -> Value {
        let children = self.children(path);
        if let Some(Kind::Words(words)) = children.get("*").map(|key| &key.kind) {
            let (properties, _) = self.properties(path, |name| name != "*");
            // The file contains only one of the permitted keys; the others have the same schema.
            let any = properties.values().next().cloned().unwrap_or_default();
            return json!({ "type": "object", "propertyNames": { "enum": words }, "additionalProperties": any });
        }
        let is_various = |name: &str| matches!(children[name].kind, Kind::Various);
        let is_mixed = children.keys().any(|name| is_various(name)) && !children.keys().all(|name| is_various(name));
        let (properties, required) = self.properties(path, |name| is_mixed && !is_various(name));
        let any = children.iter().find(|(name, _)| !properties.contains_key(**name));
        let any = any.map(|(name, key)| self.value(&format!("{path}.{name}"), &key.kind)).unwrap_or_default();
        match properties.is_empty() {
            true => json!({ "type": "object", "additionalProperties": any }),
            false => table(&json!({ "properties": properties, "additionalProperties": any }), &required),
        }
    }

    /// The schemas of the selected children with descriptions and defaults, and the names of the required children.
    fn properties(&self, path: &str, is_selected: impl Fn(&str) -> bool) -> (Map<String, Value>, Vec<&str>) {
        let (mut properties, mut required) = (Map::new(), Vec::new());
        for (name, key) in self.children(path) {
            if !is_selected(name) {
                continue;
            }
            let mut schema = self.value(&key.path, &key.kind);
            if let Some((doc, default)) = self.docs.get(&key.path) {
                if !doc.is_empty() {
                    schema["description"] = doc.replace('\n', " ").into();
                }
                if let Some(default) = default {
                    let line: toml::Table = toml::from_str(&format!("default = {default}")).unwrap();
                    schema["default"] = serde_json::to_value(&line["default"]).unwrap();
                }
            }
            properties.insert(name.to_owned(), schema);
            if is_required(&self.file, &key.path) {
                required.push(name);
            }
        }
        (properties, required)
    }
}

fn is_required(file: &toml::Value, path: &str) -> bool {
    record_keys(file, Some(path)).is_err()
}

fn table(table: &Value, required: &[&str]) -> Value {
    let mut table = table.clone();
    table["type"] = json!("object");
    if !required.is_empty() {
        table["required"] = json!(required);
    }
    table
}

/// Schema of a value with several forms.
fn various(path: &str) -> Value {
    let command = json!({ "type": "array", "items": { "type": "string" } });
    let seconds = json!({ "type": "number", "minimum": 0 });
    let form = |key: &str, value: &Value| {
        table(&json!({ "properties": { key: value, "timeout": seconds }, "additionalProperties": false }), &[key])
    };
    match path.rsplit('.').next() {
        Some("readiness") => json!({ "anyOf": [
            { "enum": ["started"] },
            form("socket", &json!({ "type": "string" })),
            form("port", &json!({ "type": "integer", "minimum": 1, "maximum": u16::MAX })),
            form("command", &command),
        ] }),
        Some("liveness") => json!({ "anyOf": [{ "enum": ["off"] }, form("command", &command)] }),
        _ => json!({ "anyOf": [{ "type": ["boolean", "number", "string"] }, command] }),
    }
}

fn read(schema: &Value, text: &str) -> Result<(), String> {
    let file: toml::Table = toml::from_str(text).map_err(|error| error.to_string())?;
    validator::check(schema, &serde_json::to_value(file).unwrap(), "")
}

fn parse(text: &str) -> Result<(), String> {
    Config::parse(text, Path::new("t")).map(drop).map_err(|error| error.to_string())
}

#[test]
fn schema_matches_types_and_example_file() {
    let schema = serde_json::to_string_pretty(&Source::new().schema()).unwrap();
    assert_generated(FILE, &format!("{schema}\n"));
    let (line, _) = EXAMPLE.split_once('\n').unwrap();
    assert_eq!(line, format!("#:schema ./{}", FILE.trim_start_matches("config/")));
}

/// Finds all files with this suffix, except in build and hidden directories.
fn files(directory: &Path, suffix: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() && !path.is_symlink() && name != "target" && !name.starts_with('.') {
            files(&path, suffix, found);
        } else if name.ends_with(suffix) {
            found.push(path);
        }
    }
}

#[test]
fn every_example_in_repository_and_docs_is_valid() {
    let schema = Source::new().schema();
    let (root, mut tomls, mut pages) = (harness::root(), Vec::new(), Vec::new());
    files(root, "slurminit.toml", &mut tomls);
    files(root, ".md", &mut pages);
    let example = Example::parse(EXAMPLE);
    let mut texts = vec![("defaults".to_owned(), example.defaults), ("all examples".to_owned(), example.uncommented)];
    texts.extend(tomls.iter().map(|file| (file.display().to_string(), fs::read_to_string(file).unwrap())));
    for page in &pages {
        let text = fs::read_to_string(page).unwrap();
        let blocks = text.split("\n```toml\n").skip(1).filter_map(|rest| rest.split_once("\n```"));
        texts.extend(blocks.map(|(block, _)| (page.display().to_string(), block.to_owned())));
    }
    assert!(texts.len() > 50, "found only {}", texts.len());
    for (origin, text) in texts {
        assert_eq!(read(&schema, &text), Ok(()), "{origin}:\n{text}");
        assert_eq!(parse(&text), Ok(()), "{origin}:\n{text}");
    }
}

#[test]
fn schema_rejects_what_program_rejects() {
    let schema = Source::new().schema();
    for wrong in [
        "role = \"al\"",
        "rol = \"all\"",
        "user_customized = \"yes\"",
        "[gpu]\ngres = 3",
        "[gpu]\ndetect_timeout = -1",
        "[gpu]\ndetect_timeout = \"10\"",
        "[gpu]\nonly = \"0\"",
        "[gpu]\nonly = [true]",
        "gpu = 1",
        "[slurm]\ncontroller_port = 65536",
        "[node]\ncpus = -1",
        "[node]\ncpus = 1.5",
        "[slurm.conf]\nMailProg = { a = 1 }",
        "[slurm.conf]\nMailProg = [1]",
        "[[partition]]\nMaxTime = 1",
        "[partition]\nname = \"a\"",
        "[daemon.sackd]\nuser = \"x\"",
        "[daemon.slurmd]\nuser = 1",
        "[daemon.slurmd]\nreadiness = { port = 1, socket = \"/x\" }",
        "[daemon.slurmd]\nreadiness = \"soon\"",
        "[daemon.slurmd]\nreadiness = { port = 0 }",
        "[daemon.slurmd]\nliveness = \"on\"",
        "[daemon.slurmd]\nliveness = { port = 1 }",
        "[daemon.slurmd]\nenv = { A = 1 }",
        "[[service]]\nname = \"api\"",
        "[[service]]\nname = \"api\"\ncommand = \"serve\"",
        "[[hooks.pre_job]]\ncommand = [\"x\"]\non_failure = \"stop\"",
        "[[user]]\nuid = 1",
        "[[group]]\nname = \"lab\"",
        "[faults]\nlost = \"fix\"",
        "[faults.xid]\n31 = \"fix\"",
        "[memory]\nclose_below = 256",
    ] {
        assert!(parse(wrong).is_err(), "the program accepts it:\n{wrong}");
        assert!(read(&schema, wrong).is_err(), "the schema accepts it:\n{wrong}");
    }
}

/// Adds an unknown key to each table with fixed keys.
#[test]
fn schema_rejects_unknown_keys_in_every_table() {
    let source = Source::new();
    let schema = source.schema();
    let is_table = |kind: &Kind| match kind {
        Kind::Table => true,
        Kind::List(kind) => matches!(**kind, Kind::Table),
        _ => false,
    };
    let tables: Vec<&str> =
        source.types.iter().filter(|key| is_table(&key.kind)).map(|key| key.path.as_str()).collect();
    assert!(tables.len() > 20, "{tables:?}");
    for table in tables {
        let mut file = source.file.clone();
        let mut place = &mut file;
        for name in table.split('.').filter(|name| !name.is_empty()) {
            place = place.get_mut(name).unwrap();
            if place.is_array() {
                place = place.get_mut(0).unwrap();
            }
        }
        place.as_table_mut().unwrap().insert("unknown-key".to_owned(), 1.into());
        let json = serde_json::to_value(&file).unwrap();
        assert!(validator::check(&schema, &json, "").is_err(), "the schema accepts an unknown key in [{table}]");
        assert!(record_keys(&file, None).is_ok(), "the recorder must ignore unknown keys");
        assert!(
            serde::Deserialize::deserialize(file).map(|_: Config| ()).is_err(),
            "the program accepts an unknown key in [{table}]"
        );
    }
}
