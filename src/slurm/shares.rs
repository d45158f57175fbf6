//! The accounts' fair-share factors, from `sshare`.

/// The arguments of `sshare`. The column `User` is empty in the lines of accounts.
pub(crate) const ARGUMENTS: [&str; 3] = ["--noheader", "--parsable2", "--format=Account,User,FairShare,LevelFS"];

/// An account's fair-share factor. A higher factor means less usage relative to the account's share.
#[derive(Clone, Debug, PartialEq)]
pub struct FairShare {
    /// The account.
    pub account: String,
    /// Slurm's FairShare (0 to 1). Under Fair Tree, which computes no FairShare for accounts, this is LevelFS (1 if the usage equals the share).
    pub factor: f64,
}

/// Parses the accounts in sshare's output. Under Fair Tree, omits root, and accounts without usage, whose LevelFS is infinite.
pub(crate) fn parse(text: &str) -> Vec<FairShare> {
    let parse_line = |line: &str| {
        let mut fields = line.split('|').map(str::trim);
        let (account, user) = (fields.next()?, fields.next()?);
        let (share, level) = (fields.next()?, fields.next()?);
        // The LevelFS of root is meaningless: root is the parent of all other accounts.
        let level = Some(level).filter(|_| account != "root").and_then(|level| level.parse().ok());
        let factor = share.parse::<f64>().ok().or(level)?;
        let is_account = !account.is_empty() && user.is_empty() && factor.is_finite();
        is_account.then(|| FairShare { account: account.to_owned(), factor })
    };
    text.lines().filter_map(parse_line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_share_of_accounts_only() {
        let parsed = |text: &str| {
            parse(text).into_iter().map(|share| (share.account, share.factor)).collect::<Vec<(String, f64)>>()
        };
        let tree = "root|||0.000000\n root|root|1.000000|inf\n lab|||0.333333\n  lab|alice|0.500000|1.0\n new|||inf\n";
        assert_eq!(parsed(tree), [("lab".to_owned(), 0.333_333)]);
        let classic = "root||1.000000|\n lab||0.250000|0.1\n";
        assert_eq!(parsed(classic), [("root".to_owned(), 1.0), ("lab".to_owned(), 0.25)]);
        assert_eq!(parsed("no such thing\n||1|\n"), []);
    }
}
