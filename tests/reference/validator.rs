//! A validator for the subset of JSON Schema (draft 7) that config/slurminit.schema.json uses.

use serde_json::Value;

/// Validates `value` against `schema`. `at` is the path of the value, for errors.
///
/// # Panics
/// If the schema has an unsupported keyword or type.
pub(crate) fn check(schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    for (keyword, rule) in schema.as_object().unwrap() {
        let is_valid = match keyword.as_str() {
            "$schema" | "title" | "description" | "default" => true,
            "type" => match rule.as_array() {
                Some(names) => names.iter().any(|name| is_type(name, value)),
                None => is_type(rule, value),
            },
            "enum" => rule.as_array().unwrap().contains(value),
            "minimum" => value.as_f64().is_none_or(|number| number >= rule.as_f64().unwrap()),
            "maximum" => value.as_f64().is_none_or(|number| number <= rule.as_f64().unwrap()),
            "anyOf" => rule.as_array().unwrap().iter().any(|schema| check(schema, value, at).is_ok()),
            "items" => {
                value.as_array().into_iter().flatten().try_for_each(|item| check(rule, item, at)).map(|()| true)?
            }
            "properties" => {
                for (name, schema) in rule.as_object().unwrap() {
                    value.get(name).map_or(Ok(()), |value| check(schema, value, &format!("{at}.{name}")))?;
                }
                true
            }
            "required" => rule
                .as_array()
                .unwrap()
                .iter()
                .all(|name| !value.is_object() || value.get(name.as_str().unwrap()).is_some()),
            "propertyNames" => {
                let mut names = value.as_object().into_iter().flat_map(|table| table.keys());
                names.try_for_each(|name| check(rule, &Value::from(name.as_str()), at)).map(|()| true)?
            }
            "additionalProperties" => {
                let known = schema.get("properties").and_then(Value::as_object);
                let is_other = |name: &str| known.is_none_or(|known| !known.contains_key(name));
                let mut others = value.as_object().into_iter().flatten().filter(|(name, _)| is_other(name));
                match rule {
                    Value::Bool(is_allowed) => *is_allowed || others.next().is_none(),
                    rule => others.try_for_each(|(_, value)| check(rule, value, at)).map(|()| true)?,
                }
            }
            other => panic!("unsupported keyword {other}"),
        };
        if !is_valid {
            return Err(format!("{at}: {value} violates {keyword}: {rule}"));
        }
    }
    Ok(())
}

fn is_type(name: &Value, value: &Value) -> bool {
    match name.as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "number" => value.is_number(),
        "integer" => value.is_i64() || value.is_u64(),
        other => panic!("unsupported type {other}"),
    }
}
