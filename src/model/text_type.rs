//! What types around a text have in common.

/// A type around a checked text: reads it back and prints it.
#[macro_export]
macro_rules! text_type {
    ($name:ident) => {
        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(&self.0)
            }
        }
    };
    ($name:ident, $wrong:literal, $is_valid:expr) => {
        $crate::text_type!($name);

        impl TryFrom<String> for $name {
            type Error = String;

            fn try_from(text: String) -> Result<Self, Self::Error> {
                let is_valid: fn(&str) -> bool = $is_valid;
                if is_valid(&text) { Ok(Self(text)) } else { Err(format!($wrong, text.escape_default())) }
            }
        }
    };
}

/// A type that serde writes and reads as the text that `Display` and `FromStr` tell of.
#[macro_export]
macro_rules! serde_by_text {
    ($name:ident) => {
        impl TryFrom<String> for $name {
            type Error = <Self as std::str::FromStr>::Err;

            fn try_from(text: String) -> Result<Self, Self::Error> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(value: $name) -> Self {
                value.to_string()
            }
        }
    };
}

/// A type that people see in the same words as serde writes.
#[macro_export]
macro_rules! shown_as_serialized {
    ($($name:ty),*) => {
        $(impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                serde::Serialize::serialize(self, f)
            }
        })*
    };
}

/// Reads one of an enum's words, as in the configuration.
pub fn word<'a, T: serde::Deserialize<'a>>(text: &'a str) -> Result<T, serde::de::value::Error> {
    T::deserialize(serde::de::IntoDeserializer::into_deserializer(text))
}
