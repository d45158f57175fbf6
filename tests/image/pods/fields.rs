//! A mapping in a manifest. Each of its fields must be handled.

use serde_json::{Map, Value};
use yaml_rust2::{Yaml, YamlLoader};

/// The fields that are not taken yet. Dropping the value while fields remain panics, so that no unsupported field is ignored silently.
#[derive(Debug)]
pub(crate) struct Fields {
    path: String,
    remaining: Map<String, Value>,
}

impl Fields {
    #[track_caller]
    pub(crate) fn of(path: &str, value: Value) -> Self {
        let Value::Object(remaining) = value else { panic!("{path} is not a mapping: {value}") };
        Self { path: path.to_owned(), remaining }
    }

    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.remaining.remove(name)
    }

    pub(crate) fn fields(&mut self, name: &str) -> Option<Self> {
        let path = format!("{}.{name}", self.path);
        self.take(name).map(|value| Self::of(&path, value))
    }

    #[track_caller]
    pub(crate) fn must(&mut self, name: &str) -> Self {
        let path = self.path.clone();
        self.fields(name).unwrap_or_else(|| panic!("{path} has no {name}"))
    }

    pub(crate) fn text(&mut self, name: &str) -> Option<String> {
        self.take(name).map(|value| text(&value))
    }

    pub(crate) fn number(&mut self, name: &str) -> Option<u64> {
        self.take(name).map(|value| value.as_u64().unwrap_or_else(|| panic!("{}.{name}: {value}", self.path)))
    }

    pub(crate) fn flag(&mut self, name: &str) -> bool {
        self.take(name).is_some_and(|value| value.as_bool().unwrap_or_else(|| panic!("{}.{name}: {value}", self.path)))
    }

    pub(crate) fn texts(&mut self, name: &str) -> Vec<String> {
        match self.take(name) {
            Some(Value::Array(list)) => list.iter().map(text).collect(),
            None => Vec::new(),
            Some(other) => panic!("{}.{name} is not a list: {other}", self.path),
        }
    }

    /// The mappings of a list.
    pub(crate) fn list(&mut self, name: &str) -> Vec<Self> {
        let path = format!("{}.{name}", self.path);
        match self.take(name) {
            Some(Value::Array(list)) => list.into_iter().map(|value| Self::of(&path, value)).collect(),
            None => Vec::new(),
            Some(other) => panic!("{path} is not a list: {other}"),
        }
    }

    /// Takes a field that must have this value. The value needs no option of Docker.
    #[track_caller]
    pub(crate) fn is(&mut self, name: &str, value: impl Into<Value>) {
        assert_eq!(self.take(name), Some(value.into()), "{}.{name}", self.path);
    }

    /// Drops fields that do not affect a container.
    pub(crate) fn ignore<const N: usize>(&mut self, names: [&str; N]) {
        names.iter().for_each(|name| drop(self.take(name)));
    }

    /// The remaining fields, as name and text.
    pub(crate) fn rest(mut self) -> Vec<(String, String)> {
        std::mem::take(&mut self.remaining).into_iter().map(|(name, value)| (name, text(&value))).collect()
    }
}

impl Drop for Fields {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert!(
                self.remaining.is_empty(),
                "tests/image/pods does not support these fields of {}: {:?}",
                self.path,
                self.remaining
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
        other => panic!("unsupported YAML: {other:?}"),
    }
}
