//! Brings the accounting database in line with `[[account]]`, `[[qos]]` and `[[user]]`.
//!
//! Creates or changes the configured entries. Removes nothing: entries that were created by hand are kept, and so is each key that
//! slurminit.toml does not contain.

use std::collections::BTreeMap;

use config::{Config, Limits, SlurmKey, SlurmSettings};
use sys::tool::answer::first_line;

use crate::client::{Client, limit};

/// The largest number of names in one call. The argument then remains far below the kernel's limit (128 KiB).
const NAMES_PER_CALL: usize = 1000;

/// Applies the configuration to the cluster called `cluster`. slurmctld must have registered this cluster: only then can
/// slurmdbd limit GPUs.
///
/// # Errors
/// The first failed request that creates or changes an entry, or lists the existing ones; later requests are not made.
pub fn apply(config: &Config, cluster: &str) -> Result<(), String> {
    apply_with(Sacctmgr(Client::with_total_timeout(limit::ASSOCIATIONS)), config, cluster)
}

fn apply_with(sacctmgr: Sacctmgr<'_>, config: &Config, cluster: &str) -> Result<(), String> {
    let existing = sacctmgr.run(&["show", "qos", "format=name"])?;
    for qos in &config.qos {
        let is_known = existing.lines().any(|name| is_same(name, qos.name.as_str()));
        sacctmgr.create_or_modify(qos, is_known, "qos", &[&format!("name={}", qos.name)])?;
    }
    let of_cluster = format!("cluster={cluster}");
    let existing = sacctmgr.run(&["show", "assoc", &of_cluster, "format=account,user"])?;
    let existing: Vec<(&str, &str)> = existing.lines().filter_map(|line| line.split_once('|')).collect();
    for account in &config.accounts {
        let is_known = existing.iter().any(|(name, user)| user.is_empty() && is_same(name, account.name.as_str()));
        sacctmgr.create_or_modify(account, is_known, "account", &[&format!("name={}", account.name), &of_cluster])?;
    }
    let is_new = |account: &str, user: &str| {
        !existing.iter().any(|(name, known)| is_same(name, account) && is_same(known, user))
    };
    for (account, names) in users_by_account(config, is_new) {
        sacctmgr.run(&["add", "user", &names, &format!("account={account}"), &of_cluster])?;
    }
    let defaults = sacctmgr.run(&["show", "user", "format=user,defaultaccount"])?;
    let defaults: Vec<(&str, &str)> = defaults.lines().filter_map(|line| line.split_once('|')).collect();
    let has_other_default =
        |account: &str, user: &str| defaults.iter().any(|(name, own)| is_same(name, user) && !is_same(own, account));
    for (account, names) in users_by_account(config, has_other_default) {
        let default = format!("defaultaccount={account}");
        sacctmgr.run(&["modify", "user", "where", &names, &of_cluster, "set", &default])?;
    }
    Ok(())
}

/// Whether the names are the same. slurmdbd stores names in lower case.
fn is_same(stored: &str, configured: &str) -> bool {
    stored.eq_ignore_ascii_case(configured)
}

/// The users for whom `is_selected(account, user)` is true, as `name=alice,bob`, by account, in parts of at most [`NAMES_PER_CALL`] names.
fn users_by_account(config: &Config, is_selected: impl Fn(&str, &str) -> bool) -> Vec<(&str, String)> {
    let mut names: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for user in &config.users {
        let Some(account) = &user.account else { continue };
        if is_selected(account.as_str(), user.name.as_str()) {
            names.entry(account.as_str()).or_default().push(user.name.as_str());
        }
    }
    let calls = names.iter().flat_map(|(account, names)| names.chunks(NAMES_PER_CALL).map(move |part| (account, part)));
    calls.map(|(account, part)| (*account, format!("name={}", part.join(",")))).collect()
}

fn assignments(settings: &SlurmSettings) -> Vec<String> {
    settings.iter().map(|(key, value)| format!("{}={}", key.as_str(), value.as_str())).collect()
}

#[derive(Clone, Copy)]
struct Sacctmgr<'a>(Client<'a>);

impl Sacctmgr<'_> {
    /// Creates an account or QOS, or changes it if it differs.
    fn create_or_modify(self, limits: &Limits, is_known: bool, kind: &str, selector: &[&str]) -> Result<(), String> {
        let settings = assignments(&limits.settings);
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        if !is_known {
            return self.run(&[&["add", kind], selector, &settings].concat()).map(drop);
        }
        if settings.is_empty() || self.has_settings(&limits.settings, kind, selector) {
            return Ok(());
        }
        match self.run(&[&["modify", kind, "where"], selector, &["set"], &settings].concat()) {
            // The values are the same, written differently.
            Err(why) if why.contains("Request didn't affect anything") => Ok(()),
            output => output.map(drop),
        }
    }

    /// Whether the database has these values, written in the same way. A key that sacctmgr cannot show counts as different.
    fn has_settings(self, settings: &SlurmSettings, kind: &str, selector: &[&str]) -> bool {
        // The key with which sacctmgr sets an account's parent differs from the one that it shows.
        let shown_key =
            |key: &SlurmKey| if key.is("Parent") { "ParentName".to_owned() } else { key.as_str().to_owned() };
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
        self.run(&arguments).is_ok_and(|output| output == values.join("|"))
    }

    fn run(self, arguments: &[&str]) -> Result<String, String> {
        let fixed = ["--immediate", "--noheader", "--parsable2"];
        let output = self.0.answer("sacctmgr", &[&fixed[..], arguments].concat());
        let output = match output {
            // sacctmgr applies the settings that it can parse, ignores the others, and reports success.
            Ok((_, stderr)) if !stderr.trim().is_empty() => Err(first_line([stderr.as_str()])),
            output => output.map(|(stdout, _)| stdout).map_err(String::from),
        };
        let output = output.map_err(|why| format!("{why} (sacctmgr {})", arguments.join(" ")))?;
        Ok(output.trim_end().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::path::Path;

    use super::*;
    use sys::tool::answer::Answer;

    const CONFIG: &str = "[accounting]\nmode = 'embedded'\n[[account]]\nname = 'Lab'\n[[account]]\nname = 'guests'\n\
        [[qos]]\nname = 'Short'\n[[qos]]\nname = 'long'\n";

    /// The calls that change the database, for users of the account Lab and one of guests.
    fn calls(users: usize, answers: [(&str, &str); 3]) -> Vec<String> {
        let user = |index: usize| format!("[[user]]\nname = 'u{index}'\nuid = {}\naccount = 'Lab'\n", 2000 + index);
        let users: String = (0..users).map(user).collect();
        let other = "[[user]]\nname = 'eve'\nuid = 1500\naccount = 'guests'\n";
        let config = Config::parse(&format!("{CONFIG}{users}{other}"), Path::new("slurminit.toml")).unwrap();
        let made = RefCell::new(Vec::new());
        let run = |_: &str, arguments: &[&str]| {
            let line = arguments[3..].join(" ");
            let stdout =
                answers.iter().find(|(show, _)| line.starts_with(show)).map(|(_, stdout)| (*stdout).to_owned());
            if stdout.is_none() {
                made.borrow_mut().push(line);
            }
            Answer::Ended { succeeded: true, stdout: stdout.unwrap_or_default(), stderr: String::new() }
        };
        apply_with(Sacctmgr(Client::with_runner(&run)), &config, "c").unwrap();
        made.into_inner()
    }

    #[test]
    fn adds_all_users_of_an_account_in_one_call() {
        let nothing = [("show qos", "normal\n"), ("show assoc", "root|\nroot|root\n"), ("show user", "root|root\n")];
        let names = (0..500).map(|index| format!("u{index}")).collect::<Vec<_>>().join(",");
        let expected = [
            "add qos name=Short",
            "add qos name=long",
            "add account name=Lab cluster=c",
            "add account name=guests cluster=c",
            &format!("add user name={names} account=Lab cluster=c"),
            "add user name=eve account=guests cluster=c",
        ];
        assert_eq!(calls(500, nothing), expected);
        assert_eq!(calls(2500, nothing).iter().filter(|call| call.starts_with("add user")).count(), 4);
    }

    #[test]
    fn changes_only_settings_that_differ() {
        let toml = "[accounting]\nmode = 'embedded'\n[[account]]\nname = 'Lab'\nFairShare = 2\nParent = 'root'\n\
            [[qos]]\nname = 'short'\nPriority = 5\n";
        let config = Config::parse(toml, Path::new("slurminit.toml")).unwrap();
        let calls = |account: &'static str, qos: &'static str| {
            let made = RefCell::new(Vec::new());
            let run = |_: &str, arguments: &[&str]| {
                let line = arguments[3..].join(" ");
                let stdout = match line.as_str() {
                    "show qos format=name" => "short\n",
                    "show assoc cluster=c format=account,user" => "lab|\n",
                    "show user format=user,defaultaccount" => "",
                    "show assoc user= account=Lab cluster=c format=FairShare,ParentName" => account,
                    "show qos name=short format=Priority" => qos,
                    _ => {
                        made.borrow_mut().push(line);
                        ""
                    }
                };
                Answer::Ended { succeeded: true, stdout: stdout.to_owned(), stderr: String::new() }
            };
            apply_with(Sacctmgr(Client::with_runner(&run)), &config, "c").unwrap();
            made.into_inner()
        };
        assert_eq!(calls("2|root\n", "5\n"), [""; 0]);
        let account = "modify account where name=Lab cluster=c set FairShare=2 Parent=root";
        assert_eq!(calls("2|other\n", "5\n"), [account]);
        assert_eq!(calls("2|root\n", "4\n"), ["modify qos where name=short set Priority=5"]);
    }

    #[test]
    fn value_in_another_notation_is_no_failure() {
        let toml = "[accounting]\nmode = 'embedded'\n[[qos]]\nname = 'short'\nMaxWall = 60\n";
        let config = Config::parse(toml, Path::new("slurminit.toml")).unwrap();
        let applied = |error: &str| {
            let run = |_: &str, arguments: &[&str]| match arguments[3..].join(" ").as_str() {
                "show qos format=name" => {
                    Answer::Ended { succeeded: true, stdout: "short\n".to_owned(), stderr: String::new() }
                }
                line if line.starts_with("modify") => {
                    Answer::Ended { succeeded: false, stdout: error.to_owned(), stderr: String::new() }
                }
                _ => Answer::Ended { succeeded: true, stdout: String::new(), stderr: String::new() },
            };
            apply_with(Sacctmgr(Client::with_runner(&run)), &config, "c")
        };
        assert_eq!(applied(" Request didn't affect anything"), Ok(()));
        assert!(applied("Unable to contact slurmdbd").is_err_and(|why| why.contains("slurmdbd")));
    }

    /// slurmdbd stores `Lab` as `lab`.
    #[test]
    fn adds_nothing_that_exists_in_lower_case() {
        let all = [
            ("show qos", "normal\nshort\nlong\n"),
            ("show assoc", "root|\nlab|\nguests|\nlab|u0\nlab|u1\nguests|eve\n"),
            ("show user", "u0|lab\nu1|lab\neve|guests\n"),
        ];
        assert_eq!(calls(2, all), Vec::<String>::new());
        let other_default = [all[0], all[1], ("show user", "u0|guests\nu1|guests\neve|guests\n")];
        assert_eq!(calls(2, other_default), ["modify user where name=u0,u1 cluster=c set defaultaccount=Lab"]);
    }
}
