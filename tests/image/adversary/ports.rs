//! The daemons' ports, bound whenever they are free.

use super::attack::Attack;
use crate::long::faults::sign::Sign;

/// A process that binds the port and listens. HOW: listens, bound (does not listen), short (closes after 0.3 s).
const THIEF: &str = r#"
thief() { # PORT HOW
    perl -e '
        use Socket;
        my ($port, $how) = @ARGV;
        while (1) {
            socket(my $s, PF_INET, SOCK_STREAM, 0);
            setsockopt($s, SOL_SOCKET, SO_REUSEADDR, 1) if $how ne "bound";
            if (bind($s, sockaddr_in($port, INADDR_ANY))) {
                listen($s, 5) if $how ne "bound";
                select(undef, undef, undef, $how eq "short" ? 0.3 : 3600);
            }
            close($s);
            select(undef, undef, undef, 0.001);
        }' "$1" "$2" &
}
"#;

pub(super) fn attacks() -> Vec<Attack> {
    // The user nobody cannot restart a daemon, so root kills it, but too rarely for a crash loop.
    let attack = |name, port: u16, daemon: &str| {
        let script = format!("{THIEF}for how in listens bound short; do thief {port} $how; done; wait");
        let root_script = format!("sleep 4; for i in 1 2 3 4 5; do pkill -KILL -x {daemon}; sleep 16; done");
        Attack { root_script, ..Attack::new(name, &script, Sign::event("port-owner-killed").with("user", "nobody")) }
    };
    vec![
        attack("binds slurmctld's port whenever it is free; slurmctld dies five times", 6817, "slurmctld"),
        attack("binds slurmd's port whenever it is free; slurmd dies five times", 6818, "slurmd"),
    ]
}
