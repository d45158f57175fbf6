//! Macros and a function that convert types to and from text.

/// Implements `as_str` and `Display` for a type around a text. With a message and a check, also implements `TryFrom<String>`.
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

/// Implements the conversions for serde's `try_from = "String"` and `into = "String"`, through `FromStr` and `Display`.
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

/// Implements `Display` with serde's text.
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

/// Parses an enum value in the configuration's spelling.
pub fn word<'a, T: serde::Deserialize<'a>>(text: &'a str) -> Result<T, serde::de::value::Error> {
    T::deserialize(serde::de::IntoDeserializer::into_deserializer(text))
}
