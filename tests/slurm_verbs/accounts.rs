//! `slurminit associations`: accounts and users for slurmdbd.

use std::fs;

use super::fake::Fake;

fn with_accounts(fake: Fake) -> Fake {
    fs::create_dir(fake.path("etc")).unwrap();
    fs::write(fake.path("etc/slurm.conf"), "ClusterName=lab\n").unwrap();
    let toml = fs::read_to_string(fake.path("slurminit.toml")).unwrap();
    let accounts = "[accounting]\nmode = 'embedded'\n[[account]]\nname = 'physics'\n";
    fs::write(fake.path("slurminit.toml"), format!("{toml}{accounts}")).unwrap();
    fake
}

#[test]
fn accounts_are_created_in_the_cluster_of_the_installed_file() {
    let fake = with_accounts(Fake::new().reply("sacctmgr *", &[""]));
    fake.succeed(&["associations"]);
    let added: Vec<String> = fake.calls("sacctmgr ").into_iter().filter(|call| call.contains(" add ")).collect();
    assert_eq!(added, ["--immediate --noheader --parsable2 add account name=physics cluster=lab"]);
}

#[test]
fn failure_of_sacctmgr_is_reported() {
    let fake = with_accounts(Fake::new().fail("sacctmgr *", "no database"));
    let output = fake.run(&["associations"]);
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && log.contains("no database"), "{log}");
}
