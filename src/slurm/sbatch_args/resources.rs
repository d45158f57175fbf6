//! The resources requested by a method.json.

use serde_json::{Map, Value};

use super::TimeLimit;

/// Slurm's maximum number of CPUs per task: the largest number that is not reserved in a 16-bit field.
const MAX_CPUS: u64 = 65_533;
/// The maximum number of GPUs, more than any machine has.
const MAX_GPUS: u64 = 1024;
/// The maximum memory, in MiB: 64 TiB.
const MAX_MIB: u64 = 64 << 20;
/// The keys of `resources`.
const KEYS: [&str; 6] = ["cpus", "min_memory_mb", "memory_mb", "gpus", "time_limit", "exclusive"];

/// The `resources` of a method.json, each checked against its limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    pub(super) cpus: Option<Cpus>,
    min_memory_mib: Option<u64>,
    exact_memory_mib: Option<u64>,
    pub(super) gpus: u64,
    pub(super) time_limit: Option<TimeLimit>,
    pub(super) exclusive: bool,
}

/// The requested number of CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cpus {
    /// All CPUs of a node.
    All,
    /// A fixed number of CPUs.
    Count(u64),
}

impl Cpus {
    pub(super) const fn count(self) -> Option<u64> {
        match self {
            Self::All => None,
            Self::Count(count) => Some(count),
        }
    }
}

impl Resources {
    /// Parses a whole method.json. Without `resources`, or with `null` values, Slurm's defaults apply.
    ///
    /// # Errors
    /// The text is not a JSON object, `resources` has an unknown key, or a value is invalid.
    pub fn parse(text: &str) -> Result<Self, String> {
        let method: Value = serde_json::from_str(text).map_err(|error| format!("not JSON: {error}"))?;
        let Value::Object(method) = method else {
            return Err(format!("not a method: expected {{\"resources\": {{...}}}}, got {}", describe(&method)));
        };
        match method.get("resources") {
            None | Some(Value::Null) => Ok(Self::default()),
            Some(Value::Object(table)) => Self::from_table(table),
            Some(other) => Err(format!("resources: expected {{\"cpus\": 4, ...}}, got {}", describe(other))),
        }
    }

    fn from_table(table: &Map<String, Value>) -> Result<Self, String> {
        if let Some(key) = table.keys().find(|key| !KEYS.contains(&key.as_str())) {
            let known = KEYS.join(", ");
            return Err(format!("resources: unknown key {}; the keys are {known}", quoted(key)));
        }
        let integer = |key: &str, min: u64, max: u64| match table.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                let number = value.as_u64().filter(|number| (min..=max).contains(number));
                let error =
                    || format!("resources.{key}: expected a whole number from {min} to {max}, got {}", describe(value));
                number.map(Some).ok_or_else(error)
            }
        };
        let cpus = integer("cpus", 0, MAX_CPUS)?;
        Ok(Self {
            cpus: cpus.map(|count| if count == 0 { Cpus::All } else { Cpus::Count(count) }),
            min_memory_mib: integer("min_memory_mb", 1, MAX_MIB)?,
            exact_memory_mib: integer("memory_mb", 1, MAX_MIB)?,
            gpus: integer("gpus", 0, MAX_GPUS)?.unwrap_or(0),
            time_limit: time_limit(table.get("time_limit"))?,
            exclusive: match table.get("exclusive") {
                None | Some(Value::Null) => false,
                Some(Value::Bool(exclusive)) => *exclusive,
                Some(other) => {
                    return Err(format!("resources.exclusive: expected true or false, got {}", describe(other)));
                }
            },
        })
    }

    /// The requested memory in MiB: `memory_mb`, or `min_memory_mb` increased by a fifth, whichever is larger.
    pub(super) fn memory_mib(&self) -> Option<u64> {
        self.exact_memory_mib.max(self.min_memory_with_margin())
    }

    fn min_memory_with_margin(&self) -> Option<u64> {
        self.min_memory_mib.map(|least| (least * 6).div_ceil(5))
    }

    fn is_minimum_larger(&self) -> bool {
        self.min_memory_with_margin() > self.exact_memory_mib
    }

    /// The key that determines the memory.
    pub(super) fn memory_key(&self) -> &'static str {
        if self.is_minimum_larger() { "min_memory_mb" } else { "memory_mb" }
    }

    /// Explains why the memory in a message differs from the number in the file; empty if the two are equal.
    pub(super) fn memory_note(&self) -> String {
        let of_minimum = self.min_memory_mib.filter(|_| self.is_minimum_larger());
        of_minimum.map(|least| format!(" (min_memory_mb = {least}, plus 20 %)")).unwrap_or_default()
    }
}

fn time_limit(value: Option<&Value>) -> Result<Option<TimeLimit>, String> {
    let Some(value) = value.filter(|value| !value.is_null()) else { return Ok(None) };
    let limit = match value {
        Value::String(text) => TimeLimit::parse(text),
        // As in Slurm, a bare number means minutes.
        _ => value.as_u64().and_then(TimeLimit::of_minutes),
    };
    let error = || {
        format!(
            "resources.time_limit: expected minutes, \"[DAYS-]HOURS:MINUTES:SECONDS\" or \"UNLIMITED\" (0 < limit <= 10 years), got {}",
            describe(value)
        )
    };
    limit.map(Some).ok_or_else(error)
}

/// An untrusted value for a message: short and free of control characters.
fn describe(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a table".to_owned(),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string().chars().take(40).collect(),
    }
}

fn quoted(text: &str) -> String {
    format!("{:?}", text.chars().take(40).collect::<String>())
}
