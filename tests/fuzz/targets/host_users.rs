//! The passwd and group files of `[users] from`, and the resulting accounts of the container. NUL separates the texts.
#![no_main]

use std::collections::BTreeSet;
use std::path::Path;

use config::Config;
use libfuzzer_sys::fuzz_target;
use plan::accounts::{AccountFiles, HostFiles};

const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n\
    munge:x:640:640::/nonexistent:/usr/sbin/nologin\nlocal:x:1007:1007::/home/local:/bin/sh\n";
const GROUP: &str = "root:x:0:\ndaemon:x:1:\nusers:x:100:\nmunge:x:640:\nlocal:x:1007:\n";

fuzz_target!(|bytes: &[u8]| {
    let mut texts = slurminit_fuzz::texts(bytes).into_iter();
    let mut next = || texts.next().unwrap_or_default();
    let host = HostFiles { passwd: next(), group: next() };
    let config = Config::default();
    let image = AccountFiles { passwd: PASSWD.to_owned(), group: GROUP.to_owned(), shadow: None };
    let accounts = host.accounts(&config, &image, &|path| path == Path::new("/bin/sh"));

    let ids = config.host_users.ids();
    let names: BTreeSet<&str> = accounts.users.iter().map(|user| user.name.as_str()).collect();
    let uids: BTreeSet<u32> = accounts.users.iter().map(|user| user.uid).collect();
    assert_eq!((names.len(), uids.len()), (accounts.users.len(), accounts.users.len()), "duplicate name or UID");
    assert!(uids.iter().all(|uid| ids.contains(uid) && *uid != 1007), "{uids:?}");
    assert!(accounts.groups.iter().all(|group| ids.contains(&group.gid)), "{:?}", accounts.groups);

    let merged = image.with(&accounts.users, &accounts.groups).expect("host accounts can be added to the image's");
    assert!(
        merged.passwd.starts_with(PASSWD) && merged.group.starts_with("root:x:0:\n"),
        "{}{}",
        merged.passwd,
        merged.group
    );
    for line in merged.passwd.lines().skip(PASSWD.lines().count()).filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split(':').collect();
        assert!(fields.len() == 7 && fields[1] != "" && names.contains(fields[0]), "{line}");
    }
    // The accounts are kept if the next start cannot read the host's files.
    let kept = merged.previous_host_accounts(&config);
    assert_eq!(kept.users.len(), accounts.users.len(), "{}", merged.passwd);
});
