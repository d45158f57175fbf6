//! Users: what one user could do to another, or to root.

use crate::entry::{Check, Entry};
use crate::facts::ContainerFacts;
use model::inventory::{Kind, Observations};
use plan::sshd::MAX_PENDING_PER_SOURCE;
use sys::secret_variables::SecretVariable;

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "exposed-secrets",
        symptoms: &["`docker exec -u USER ... env` shows the munge key, a join token or a password", "exit code 78"],
        examines: "SLURMINIT_TOML, SLURMINIT_MUNGE_KEY and SLURMINIT_JOIN in the container's environment",
        cause: "the engine passes the container's variables to every process of `docker exec`; a container with ordinary users does not start with such a variable",
        fix: "mount /config/slurminit.toml, /run/secrets/munge.key or /run/secrets/slurminit.join in place of the variable, readable only by root",
        check: Check::Start(Kind::ExposedSecrets, |start| {
            let exposed = start.cheap.exposed_secrets.iter().map(|SecretVariable { name, content, .. }| {
                Observations::usual_warning(format!(
                    "{name} exposes {content} to every process of `docker exec`, whatever its user"
                ))
            });
            Observations::all(exposed, || Observations::ok("no variable of slurminit exposes a secret"))
        }),
    },
    Entry {
        id: "link-protection",
        symptoms: &[
            "root's job overwrites a file: `sbatch` in /data or /tmp follows a link `slurm-JOB.out` of another user",
            "a job's output file belongs to another user, or the job hangs because its output file is a named pipe",
        ],
        examines: "fs.protected_symlinks, fs.protected_hardlinks, fs.protected_fifos and fs.protected_regular of the host",
        cause: "the host's kernel lets a program open links, pipes and files that another user made in a directory such as /tmp or /data",
        fix: "`sysctl -w fs.protected_symlinks=1 fs.protected_hardlinks=1 fs.protected_fifos=1 fs.protected_regular=2` on the host; until then, \
                 submit as an ordinary user, or in a directory that only root can write to",
        check: Check::Container(|_, container| link_protection(container)),
    },
    Entry {
        id: "ssh-connections",
        symptoms: &[
            "`kex_exchange_identification: Connection closed by remote host` or `Connection reset by peer`",
            "sshd logs `beginning MaxStartups throttling`",
        ],
        examines: "the connections to sshd from each address",
        cause: "a client may be opening connections without logging in; sshd then refuses further connections from its address \
                until some of them end (after 30 s at most)",
        fix: "block the address in the host's firewall, unless its connections are sessions of your users; see sshd's lines in `slurminit logs sshd`",
        check: Check::Container(|_, container| ssh_connections(container)),
    },
];

fn link_protection(container: &ContainerFacts) -> Observations {
    let off = &container.cheap.settings.unprotected;
    if off.is_empty() {
        return Observations::ok("the kernel protects files in directories that all users can write to");
    }
    let names: Vec<String> = off.iter().map(|name| format!("fs.{name}")).collect();
    let Some(user) = &container.ordinary_user else {
        return Observations::note(format!(
            "kernel protections off on the host: {}; this container has no ordinary users",
            names.join(", ")
        ));
    };
    Observations::usual_warning(format!(
        "kernel protections off on the host: {}; this container can have ordinary users: {user}",
        names.join(", ")
    ))
}

fn ssh_connections(container: &ContainerFacts) -> Observations {
    let Some(clients) = &container.ssh_clients else { return Observations::note("no sshd in this container") };
    let many =
        clients.iter().filter(|(_, count)| u32::try_from(**count).is_ok_and(|count| count >= MAX_PENDING_PER_SOURCE));
    let warnings =
        many.map(|(address, count)| Observations::usual_warning(format!("{address} has {count} connections to sshd")));
    Observations::all(warnings, || {
        Observations::ok(format!(
            "SSH connections: {}; client addresses: {}",
            clients.values().sum::<usize>(),
            clients.len()
        ))
    })
}
