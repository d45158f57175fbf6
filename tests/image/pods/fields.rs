//! A mapping of a manifest, each field of which must be understood.

use serde_json::{Map, Value};
use yaml_rust2::{Yaml, YamlLoader};

/// Fields that were not taken yet. It fails when it is dropped with one left: what the translation does not know must not be left out silently.
#[derive(Debug)]
pub(crate) struct Fields {
    at: String,
    left: Map<String, Value>,
}

impl Fields {
    #[track_caller]
    pub(crate) fn of(at: &str, value: Value) -> Self {
        let Value::Object(left) = value else { panic!("{at} is no mapping: {value}") };
        Self { at: at.to_owned(), left }
    }

    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.left.remove(name)
    }

    pub(crate) fn fields(&mut self, name: &str) -> Option<Self> {
        let at = format!("{}.{name}", self.at);
        self.take(name).map(|value| Self::of(&at, value))
    }

    #[track_caller]
    pub(crate) fn must(&mut self, name: &str) -> Self {
        let at = self.at.clone();
        self.fields(name).unwrap_or_else(|| panic!("{at} has no {name}"))
    }

    pub(crate) fn text(&mut self, name: &str) -> Option<String> {
        self.take(name).map(|value| text(&value))
    }

    pub(crate) fn number(&mut self, name: &str) -> Option<u64> {
        self.take(name).map(|value| value.as_u64().unwrap_or_else(|| panic!("{}.{name}: {value}", self.at)))
    }

    pub(crate) fn flag(&mut self, name: &str) -> bool {
        self.take(name).is_some_and(|value| value.as_bool().unwrap_or_else(|| panic!("{}.{name}: {value}", self.at)))
    }

    pub(crate) fn texts(&mut self, name: &str) -> Vec<String> {
        match self.take(name) {
            Some(Value::Array(list)) => list.iter().map(text).collect(),
            None => Vec::new(),
            Some(other) => panic!("{}.{name} is no list: {other}", self.at),
        }
    }

    /// The mappings of a list.
    pub(crate) fn list(&mut self, name: &str) -> Vec<Self> {
        let at = format!("{}.{name}", self.at);
        match self.take(name) {
            Some(Value::Array(list)) => list.into_iter().map(|value| Self::of(&at, value)).collect(),
            None => Vec::new(),
            Some(other) => panic!("{at} is no list: {other}"),
        }
    }

    /// A field that needs nothing of Docker where it has this value.
    #[track_caller]
    pub(crate) fn is(&mut self, name: &str, value: impl Into<Value>) {
        assert_eq!(self.take(name), Some(value.into()), "{}.{name}", self.at);
    }

    /// Fields that say nothing about a container.
    pub(crate) fn ignore<const N: usize>(&mut self, names: [&str; N]) {
        names.iter().for_each(|name| drop(self.take(name)));
    }

    /// What is left, by name.
    pub(crate) fn rest(mut self) -> Vec<(String, String)> {
        std::mem::take(&mut self.left).into_iter().map(|(name, value)| (name, text(&value))).collect()
    }
}

impl Drop for Fields {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert!(
                self.left.is_empty(),
                "tests/image/pods does not know what to do with {}: {:?}",
                self.at,
                self.left
            );
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The documents of a YAML file.
#[track_caller]
pub(crate) fn documents(yaml: &str) -> Vec<Value> {
    YamlLoader::load_from_str(yaml).expect("kubectl prints YAML").into_iter().map(json).collect()
}

fn json(yaml: Yaml) -> Value {
    match yaml {
        Yaml::Integer(number) => number.into(),
        Yaml::String(text) => text.into(),
        Yaml::Boolean(flag) => flag.into(),
        Yaml::Array(list) => list.into_iter().map(json).collect(),
        Yaml::Hash(map) => map.into_iter().map(|(name, value)| (text(&json(name)), json(value))).collect(),
        Yaml::Null => Value::Null,
        other => panic!("no manifest has this: {other:?}"),
    }
}
