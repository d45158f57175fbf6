//! Each user's login environment, as far as the system files determine it.
//!
//! These are the variables that `su - USER` sets from /etc/passwd, /etc/login.defs and the two files of pam_env (/etc/environment and
//! /etc/default/locale), before it starts the shell. The shell's files (/etc/profile, `~/.profile`) are programs and are not read.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The PATH of users other than root if no file sets it (login.defs(5)).
const PATH: &str = "/bin:/usr/bin";
/// The PATH of root if no file sets it.
const ROOT_PATH: &str = "/sbin:/bin:/usr/sbin:/usr/bin";
/// The maximum length of a line, in bytes without the newline, that Slurm reads from a file with a user's environment (24.11, `env.c`:
/// `ENV_BUFSIZE`).
const MAX_LINE_LENGTH: usize = 256 * 1024 - 2;

/// The texts of the system files; a missing file is empty.
#[derive(Clone, Debug, Default)]
#[expect(missing_docs, reason = "each is the file of that name")]
pub struct LoginFiles {
    pub passwd: String,
    pub login_defs: String,
    /// /etc/environment followed by /etc/default/locale: later lines override earlier ones.
    pub environment: String,
}

impl LoginFiles {
    /// Each user's environment in the format of `env`, by user name. If a name occurs twice, the first line applies, as
    /// in the C library.
    pub fn environments(&self) -> BTreeMap<&str, String> {
        let mut environments = BTreeMap::new();
        let common = self.common();
        for line in self.passwd.lines() {
            let fields: Vec<&str> = line.split(':').collect();
            let &[name, _, uid, _, _, home, shell] = fields.as_slice() else { continue };
            if is_file_name(name) && !environments.contains_key(name) {
                environments.insert(name, self.environment(name, uid, home, shell, &common));
            }
        }
        environments
    }

    fn environment(&self, name: &str, uid: &str, home: &str, shell: &str, common: &BTreeMap<&str, &str>) -> String {
        let mut variables = common.clone();
        let (key, path) = if uid == "0" { ("ENV_SUPATH", ROOT_PATH) } else { ("ENV_PATH", PATH) };
        let home = if home.is_empty() { "/" } else { home };
        let shell = if shell.is_empty() { "/bin/sh" } else { shell };
        variables.entry("PATH").or_insert_with(|| self.login_def(key).unwrap_or(path));
        variables.extend([("HOME", home), ("LOGNAME", name), ("SHELL", shell), ("USER", name)]);
        let mut text = String::new();
        for (name, value) in variables {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{name}={value}");
        }
        text
    }

    /// Parses `ENV_PATH  PATH=/usr/local/bin:/usr/bin`; the `PATH=` is optional.
    fn login_def(&self, key: &str) -> Option<&str> {
        let value = self.login_defs.lines().find_map(|line| {
            let (own, value) = line.trim().split_once(char::is_whitespace)?;
            (own == key).then(|| value.trim())
        })?;
        Some(value.strip_prefix("PATH=").unwrap_or(value)).filter(|path| !path.is_empty())
    }

    /// The variables that pam_env takes from the text of `environment`: `NAME=value`, optionally with `export` and quotes. Omits those that Slurm
    /// cannot read.
    pub fn common(&self) -> BTreeMap<&str, &str> {
        let variable = |line| {
            let line: &str = str::trim(line);
            let (name, value) = line.strip_prefix("export ").unwrap_or(line).split_once('=')?;
            let name = name.trim();
            let is_name = |name: &str| {
                name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
                    && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            };
            let quoted = ['"', '\''].into_iter().find_map(|quote| value.strip_prefix(quote)?.strip_suffix(quote));
            let value = quoted.unwrap_or(value);
            // Slurm would interpret a value that begins with a parenthesis as the first line of a shell function.
            let fits = !value.starts_with('(') && name.len() + value.len() < MAX_LINE_LENGTH;
            (is_name(name) && fits).then_some((name, value))
        };
        self.environment.lines().filter_map(variable).collect()
    }
}

/// Whether the user's name can be a file name: Slurm looks for a file of this name. NIS entries in /etc/passwd (`+`, `-name`) are not
/// users.
fn is_file_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(['.', '+', '-'])
        && !name.contains(|c: char| c == '/' || c == '\0' || c.is_control())
        && name.len() <= 255
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(passwd: &str) -> LoginFiles {
        let login_defs = "# ENV_PATH x\nENV_SUPATH\tPATH=/sbin:/bin\nENV_PATH\tPATH=/usr/local/bin:/bin\n";
        LoginFiles { passwd: passwd.to_owned(), login_defs: login_defs.to_owned(), environment: String::new() }
    }

    fn environment_of(files: &LoginFiles, name: &str) -> String {
        files.environments().remove(name).unwrap_or_default()
    }

    #[test]
    fn users_get_login_environment() {
        let files =
            files("root:x:0:0:root:/root:/bin/bash\nalice:x:1501:1501:made by slurminit:/home/alice:/bin/zsh\n");
        let root = "HOME=/root\nLOGNAME=root\nPATH=/sbin:/bin\nSHELL=/bin/bash\nUSER=root\n";
        assert_eq!(environment_of(&files, "root"), root);
        let alice = "HOME=/home/alice\nLOGNAME=alice\nPATH=/usr/local/bin:/bin\nSHELL=/bin/zsh\nUSER=alice\n";
        assert_eq!(environment_of(&files, "alice"), alice);
    }

    #[test]
    fn fills_missing_passwd_fields_with_defaults() {
        let files = LoginFiles { passwd: "x:x:1:1:::\n".to_owned(), ..LoginFiles::default() };
        assert_eq!(environment_of(&files, "x"), "HOME=/\nLOGNAME=x\nPATH=/bin:/usr/bin\nSHELL=/bin/sh\nUSER=x\n");
    }

    #[test]
    fn users_get_valid_pam_env_variables() {
        let environment =
            "# LANG=x\nLANG=\"C.UTF-8\"\nexport A='b c'\nPATH=/opt/bin\nUSER=eve\n1X=y\nX Y=z\nF=() { :; }\nLANG=de\n";
        let mut files = files("alice:x:1501:1501::/home/alice:/bin/sh\n");
        files.environment = environment.to_owned();
        let alice = "A=b c\nHOME=/home/alice\nLANG=de\nLOGNAME=alice\nPATH=/opt/bin\nSHELL=/bin/sh\nUSER=alice\n";
        assert_eq!(environment_of(&files, "alice"), alice);
    }

    #[test]
    fn omits_variable_that_is_too_long_for_slurm() {
        // Slurm reads 262,144 bytes with the newline and the final NUL.
        let has_variable = |length: usize| {
            let mut files = files("alice:x:1501:1501::/home/alice:/bin/sh\n");
            files.environment = format!("A={}\n", "x".repeat(length - "A=".len()));
            environment_of(&files, "alice").starts_with("A=")
        };
        assert!(has_variable(262_142) && !has_variable(262_143));
    }

    #[test]
    fn ignores_invalid_passwd_lines() {
        let files = files("+\n+::::::\n-x:x:1:1::/:/bin/sh\n../y:x:1:1::/:/bin/sh\n..:x:1:1::/:/\na:b\n:x:1:1::/:/\n");
        assert_eq!(files.environments(), BTreeMap::new());
        let files = self::files("a:x:1:1::/first:/bin/sh\na:x:2:2::/second:/bin/sh\n");
        assert!(environment_of(&files, "a").contains("HOME=/first\n"), "getpwnam returns the first entry");
    }
}
