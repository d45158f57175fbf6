//! Brings the accounting database in line with `[[account]]`, `[[qos]]` and `[[user]]`.
//!
//! Creates or changes the configured entries. Removes nothing: entries made by hand stay, and so does each key that the
//! file does not name.

use config::{Config, Limits, SlurmKey, SlurmSettings};
use sys::tool::answer::first_line;

use crate::client::{Client, limit};

/// Applies the configuration to the cluster called `cluster`. slurmctld must have registered it: only then can slurmdbd
/// limit GPUs.
///
/// # Errors
/// The first request that fails; later requests are not made.
pub fn apply(config: &Config, cluster: &str) -> Result<(), String> {
    let existing = sacctmgr(&["show", "qos", "format=name"])?;
    for qos in &config.qos {
        let is_known = existing.lines().any(|name| name == qos.name.as_str());
        create_or_modify(qos, is_known, "qos", &[&format!("name={}", qos.name)])?;
    }
    let of_cluster = format!("cluster={cluster}");
    let existing = sacctmgr(&["show", "assoc", &of_cluster, "format=account,user"])?;
    for account in &config.accounts {
        let is_known = existing.lines().any(|line| line == format!("{}|", account.name));
        create_or_modify(account, is_known, "account", &[&format!("name={}", account.name), &of_cluster])?;
    }
    let defaults = sacctmgr(&["show", "user", "format=user,defaultaccount"])?;
    for user in &config.users {
        let Some(account) = &user.account else { continue };
        let name = format!("name={}", user.name);
        if !existing.lines().any(|line| line == format!("{account}|{}", user.name)) {
            sacctmgr(&["add", "user", &name, &format!("account={account}"), &of_cluster])?;
        }
        // A new user's first account is the default one.
        let default = defaults.lines().find_map(|line| line.strip_prefix(user.name.as_str())?.strip_prefix('|'));
        if default.is_some_and(|default| default != account.as_str()) {
            sacctmgr(&["modify", "user", "where", &name, &of_cluster, "set", &format!("defaultaccount={account}")])?;
        }
    }
    Ok(())
}

/// Creates an account or QOS, or changes it if it differs.
fn create_or_modify(limits: &Limits, is_known: bool, kind: &str, selector: &[&str]) -> Result<(), String> {
    let settings = assignments(&limits.settings);
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    if !is_known {
        return sacctmgr(&[&["add", kind], selector, &settings].concat()).map(drop);
    }
    if settings.is_empty() || has_settings(&limits.settings, kind, selector) {
        return Ok(());
    }
    match sacctmgr(&[&["modify", kind, "where"], selector, &["set"], &settings].concat()) {
        // The values are the same, written differently.
        Err(why) if why.contains("Request didn't affect anything") => Ok(()),
        output => output.map(drop),
    }
}

/// Whether the database has these values, written in the same way. A key that sacctmgr cannot show counts as different.
fn has_settings(settings: &SlurmSettings, kind: &str, selector: &[&str]) -> bool {
    // sacctmgr shows an account's parent under another key than it sets it.
    let shown_key = |key: &SlurmKey| if key.is("Parent") { "ParentName".to_owned() } else { key.as_str().to_owned() };
    let keys: Vec<String> = settings.iter().map(|(key, _)| shown_key(key)).collect();
    let values: Vec<&str> = settings.iter().map(|(_, value)| value.as_str()).collect();
    let mut arguments: Vec<String> = match kind {
        // The limits of an account are those of its association without a user.
        "account" => ["show", "assoc", "user="].map(str::to_owned).to_vec(),
        kind => ["show", kind].map(str::to_owned).to_vec(),
    };
    arguments.extend(selector.iter().map(|part| match (kind, part.strip_prefix("name=")) {
        ("account", Some(name)) => format!("account={name}"),
        _ => (*part).to_owned(),
    }));
    arguments.push(format!("format={}", keys.join(",")));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    sacctmgr(&arguments).is_ok_and(|output| output == values.join("|"))
}

fn assignments(settings: &SlurmSettings) -> Vec<String> {
    settings.iter().map(|(key, value)| format!("{}={}", key.as_str(), value.as_str())).collect()
}

fn sacctmgr(arguments: &[&str]) -> Result<String, String> {
    let fixed = ["--immediate", "--noheader", "--parsable2"];
    let output = Client::with_timeout(limit::COMMAND).answer("sacctmgr", &[&fixed[..], arguments].concat());
    let output = match output {
        // sacctmgr applies the settings that it can parse, ignores the others, and reports success.
        Ok((_, stderr)) if !stderr.trim().is_empty() => Err(first_line([stderr.as_str()])),
        output => output.map(|(stdout, _)| stdout).map_err(String::from),
    };
    let output = output.map_err(|why| format!("{why} (sacctmgr {})", arguments.join(" ")))?;
    Ok(output.trim_end().to_owned())
}
