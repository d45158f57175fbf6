//! A deserializer over a TOML value that records every key that the types read, and its kind.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor};
use toml::Value;
use toml::de::Error;

/// A key that a type reads.
#[derive(Debug)]
pub struct RecordedKey {
    /// Path without list indices, such as `service.after`.
    pub path: String,
    /// The type of the key's value.
    pub kind: Kind,
    /// Whether the key is missing from the file.
    pub is_missing: bool,
    /// Whether the key is in a table that accepts any key. The permitted key names of that table are recorded under the name `*`.
    is_free: bool,
}

impl RecordedKey {
    /// Whether the key has a value and a fixed name, and so must be documented.
    pub fn is_key(&self) -> bool {
        !self.is_free && !self.kind.is_table()
    }
}

/// The type of a value.
#[derive(Debug)]
pub enum Kind {
    /// `true` or `false`.
    Boolean,
    /// An integer between the minimum and the maximum of the type.
    Integer(i64, i64),
    /// A time in seconds, which may have a fraction.
    Seconds,
    /// Any text.
    Text,
    /// One of these words.
    Words(&'static [&'static str]),
    /// A list of values of one type.
    List(Box<Self>),
    /// A table with fixed keys.
    Table,
    /// A table with arbitrary keys.
    Free,
    /// Text or a table.
    Various,
}

impl Kind {
    fn is_table(&self) -> bool {
        match self {
            Self::Table => true,
            Self::List(kind) => kind.is_table(),
            _ => false,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Boolean => f.write_str("`true`, `false`"),
            Self::Integer(..) => f.write_str("whole number"),
            // All fractional numbers in the configuration are times.
            Self::Seconds => f.write_str("seconds"),
            Self::Text => f.write_str("text"),
            Self::Words(words) => {
                let quoted: Vec<String> = words.iter().map(|word| format!("`\"{word}\"`")).collect();
                f.write_str(&quoted.join(", "))
            }
            Self::List(kind) => write!(f, "list of {kind}"),
            Self::Table | Self::Free => f.write_str("table"),
            Self::Various => f.write_str("text or table"),
        }
    }
}

/// A deserializer of a TOML value.
#[derive(Clone)]
pub(crate) struct Recorder<'a> {
    value: &'a Value,
    path: String,
    is_free: bool,
    /// Number of enclosing lists.
    lists: usize,
    /// Path of a key to omit.
    without: Option<&'a str>,
    log: &'a RefCell<Vec<RecordedKey>>,
}

impl<'a> Recorder<'a> {
    /// Records into `log`; the key `without` counts as absent.
    pub(crate) fn new(file: &'a Value, without: Option<&'a str>, log: &'a RefCell<Vec<RecordedKey>>) -> Self {
        Self { value: file, path: String::new(), is_free: false, lists: 0, without, log }
    }

    fn record(&self, kind: Kind) {
        let kind = (0..self.lists).fold(kind, |kind, _| Kind::List(Box::new(kind)));
        let key = RecordedKey { path: self.path.clone(), kind, is_missing: false, is_free: self.is_free };
        self.log.borrow_mut().push(key);
    }

    fn child(&self, key: &str, value: &'a Value, is_free: bool) -> Self {
        let path = if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) };
        Self { value, path, is_free, lists: 0, ..self.clone() }
    }
}

/// Records the kind and delegates to TOML's deserializer.
macro_rules! leaf {
    ($($method:ident $kind:expr;)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            self.record($kind);
            self.value.clone().$method(visitor)
        }
    )*};
}

impl<'de> Deserializer<'de> for Recorder<'_> {
    type Error = Error;

    leaf! {
        deserialize_any Kind::Various;
        deserialize_bool Kind::Boolean;
        deserialize_i8 Kind::Integer(i8::MIN.into(), i8::MAX.into());
        deserialize_i16 Kind::Integer(i16::MIN.into(), i16::MAX.into());
        deserialize_i32 Kind::Integer(i32::MIN.into(), i32::MAX.into());
        deserialize_i64 Kind::Integer(i64::MIN, i64::MAX);
        deserialize_u8 Kind::Integer(0, u8::MAX.into());
        deserialize_u16 Kind::Integer(0, u16::MAX.into());
        deserialize_u32 Kind::Integer(0, u32::MAX.into());
        // Maximum of a TOML integer.
        deserialize_u64 Kind::Integer(0, i64::MAX);
        deserialize_f32 Kind::Seconds;
        deserialize_f64 Kind::Seconds;
        deserialize_char Kind::Text;
        deserialize_str Kind::Text;
        deserialize_string Kind::Text;
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        words: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.record(Kind::Words(words));
        self.value.clone().deserialize_enum(name, words, visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let Value::Array(items) = self.value else { return self.value.clone().deserialize_seq(visitor) };
        if items.is_empty() {
            // An empty list does not show its item type.
            self.clone().nested(&Value::String(String::new())).record(Kind::Text);
        }
        visitor.visit_seq(Items { parent: self, items: items.iter() })
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.record(Kind::Free);
        let Value::Table(table) = self.value else { return self.value.clone().deserialize_map(visitor) };
        let keys = table.iter().map(|(key, value)| (key.as_str(), value)).collect();
        visitor.visit_map(Fields { parent: self, keys, is_free: true, value: None })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.record(Kind::Table);
        let Value::Table(table) = self.value else { return self.value.clone().deserialize_map(visitor) };
        let mut keys = Vec::new();
        for field in fields {
            match table.get(*field) {
                Some(value) => keys.push((*field, value)),
                None => {
                    let child = self.child(field, self.value, false);
                    let key = RecordedKey { path: child.path, kind: Kind::Text, is_missing: true, is_free: false };
                    self.log.borrow_mut().push(key);
                }
            }
        }
        visitor.visit_map(Fields { parent: self, keys, is_free: false, value: None })
    }

    serde::forward_to_deserialize_any! {
        i128 u128 bytes byte_buf unit unit_struct tuple tuple_struct identifier ignored_any
    }
}

impl<'a> Recorder<'a> {
    fn nested(self, value: &'a Value) -> Self {
        Self { value, lists: self.lists + 1, ..self }
    }
}

struct Items<'a> {
    parent: Recorder<'a>,
    items: std::slice::Iter<'a, Value>,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        self.items.next().map(|item| seed.deserialize(self.parent.clone().nested(item))).transpose()
    }
}

/// Deserializer for a key, which may be an enum.
struct KeyRecorder<'a, 'b> {
    key: &'a str,
    table: &'b Recorder<'a>,
}

impl<'de> Deserializer<'de> for KeyRecorder<'_, '_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_str(self.key)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        words: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.table.child("*", self.table.value, true).record(Kind::Words(words));
        visitor.visit_enum(IntoDeserializer::<Error>::into_deserializer(self.key))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct seq tuple
        tuple_struct map struct identifier ignored_any
    }
}

struct Fields<'a> {
    parent: Recorder<'a>,
    /// Keys not yet visited.
    keys: Vec<(&'a str, &'a Value)>,
    is_free: bool,
    value: Option<Recorder<'a>>,
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        while !self.keys.is_empty() {
            let (key, value) = self.keys.remove(0);
            let child = self.parent.child(key, value, self.is_free);
            if self.parent.without == Some(child.path.as_str()) {
                continue;
            }
            self.value = Some(child);
            return seed.deserialize(KeyRecorder { key, table: &self.parent }).map(Some);
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        match self.value.take() {
            Some(value) => seed.deserialize(value),
            None => Err(serde::de::Error::custom("value requested before its key")),
        }
    }
}
