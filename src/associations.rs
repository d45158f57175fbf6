//! Brings the accounting database in line with `[[account]]`, `[[qos]]` and `[[user]]`. EDGE: asks `sacctmgr`.
//!
//! What the file says is made or changed. Nothing is removed: what somebody made by hand stays, and so does each key that the
//! file does not name.

use std::time::Duration;

use crate::config::{Config, Limits, SlurmKey, SlurmSettings};
use crate::tool;
use crate::tool::answer::{Answer, first_line};

/// How long slurmdbd may take for one request.
const PATIENCE: Duration = Duration::from_secs(10);

/// Applies the configuration to the cluster called `cluster`. slurmdbd must run; slurmctld need not.
///
/// # Errors
/// The first request that fails; those after it are not made.
pub fn apply(config: &Config, cluster: &str) -> Result<(), String> {
    if sacctmgr(&["show", "cluster", &format!("name={cluster}"), "format=cluster"])?.is_empty() {
        sacctmgr(&["add", "cluster", cluster])?;
    }
    let known = sacctmgr(&["show", "qos", "format=name"])?;
    for qos in &config.qos {
        let is_known = known.lines().any(|name| name == qos.name.as_str());
        settle(qos, is_known, &["qos"], &[format!("name={}", qos.name)])?;
    }
    let of_cluster = format!("cluster={cluster}");
    let known = sacctmgr(&["show", "assoc", &of_cluster, "format=account,user"])?;
    for account in &config.accounts {
        let is_known = known.lines().any(|line| line == format!("{}|", account.name));
        settle(account, is_known, &["account"], &[format!("name={}", account.name), of_cluster.clone()])?;
    }
    for user in &config.users {
        let Some(account) = &user.account else { continue };
        let (name, account) = (format!("name={}", user.name), account.as_str());
        if !known.lines().any(|line| line == format!("{account}|{}", user.name)) {
            sacctmgr(&["add", "user", &name, &format!("account={account}"), &of_cluster])?;
        }
        let has = sacctmgr(&["show", "user", &name, "format=defaultaccount"])?;
        if has != account {
            sacctmgr(&["modify", "user", "where", &name, &of_cluster, "set", &format!("defaultaccount={account}")])?;
        }
    }
    Ok(())
}

/// Makes an account or QOS, or changes it if it differs.
fn settle(wanted: &Limits, is_known: bool, kind: &[&str; 1], place: &[String]) -> Result<(), String> {
    let place: Vec<&str> = place.iter().map(String::as_str).collect();
    let settings = pairs(&wanted.settings);
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    if !is_known {
        return sacctmgr(&[&["add"], &kind[..], &place, &settings].concat()).map(drop);
    }
    if settings.is_empty() || is_so(&wanted.settings, kind, &place) {
        return Ok(());
    }
    match sacctmgr(&[&["modify"], &kind[..], &["where"], &place, &["set"], &settings].concat()) {
        // It was so, in other words.
        Err(why) if why.contains("Request didn't affect anything") => Ok(()),
        said => said.map(drop),
    }
}

/// Whether the database says the same, in the same words. It may not know a key as something that it shows.
fn is_so(settings: &SlurmSettings, kind: &[&str; 1], place: &[&str]) -> bool {
    // What is set and what is shown have other names here.
    let shown = |key: &SlurmKey| if key.is("Parent") { "ParentName".to_owned() } else { key.as_str().to_owned() };
    let keys: Vec<String> = settings.iter().map(|(key, _)| shown(key)).collect();
    let values: Vec<&str> = settings.iter().map(|(_, value)| value.as_str()).collect();
    let table = if kind == &["account"] { "assoc" } else { kind[0] };
    // An account's own line is that of no user.
    let place = place.iter().map(|part| part.replace("name=", if table == "assoc" { "account=" } else { "name=" }));
    let mut arguments = vec!["show".to_owned(), table.to_owned()];
    arguments.extend(place);
    arguments.extend((table == "assoc").then(|| "user=".to_owned()));
    arguments.push(format!("format={}", keys.join(",")));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    sacctmgr(&arguments).is_ok_and(|said| said == values.join("|"))
}

fn pairs(settings: &SlurmSettings) -> Vec<String> {
    settings.iter().map(|(key, value)| format!("{}={}", key.as_str(), value.as_str())).collect()
}

fn sacctmgr(arguments: &[&str]) -> Result<String, String> {
    let fixed = ["--immediate", "--noheader", "--parsable2"];
    let said = tool::ask("sacctmgr", &[&fixed[..], arguments].concat(), PATIENCE);
    let said = match said {
        // Of several settings it takes those that it understands, and calls that a success.
        Answer::Ended { succeeded: true, stderr, .. } if !stderr.trim().is_empty() => {
            Err(first_line([stderr.as_str()]))
        }
        said => said.output_of("sacctmgr"),
    };
    let said = said.map_err(|why| format!("{why} (sacctmgr {})", arguments.join(" ")))?;
    Ok(said.trim_end().to_owned())
}
