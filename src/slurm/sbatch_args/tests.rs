use super::*;

/// Output of Slurm 24.11.5 for two different nodes.
const NODES: &str = "\
NodeName=n1 Arch=x86_64 CoresPerSocket=2  CPUAlloc=0 CPUEfctv=8 CPUTot=8 CPULoad=8.98 AvailableFeatures=a ActiveFeatures=a \
Gres=gpu:nvidia:2(S:0-1) NodeAddr=n1 NodeHostName=n1 Version=24.11.5 OS=Linux 6.1.0 #1 SMP @0  RealMemory=20009 AllocMem=0 \
FreeMem=8089 Sockets=1 Boards=1 State=IDLE ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions=debug,long  \
BootTime=2026-11-21T16:05:21 CfgTRES=cpu=8,mem=20009M,billing=8 AllocTRES=\n\
NodeName=n2 Arch=x86_64 CPUAlloc=0 CPUEfctv=62 CPUTot=64 Gres=(null) OS=Linux RealMemory=260000 MemSpecLimit=4000 State=DOWN+DRAIN \
Partitions=debug  Reason=fan CPUTot=4096 [root@now]\n";
const PARTITIONS: &str = "\
PartitionName=debug AllowGroups=ALL Default=YES MaxNodes=UNLIMITED MaxTime=1-00:00:00 MaxCPUsPerNode=UNLIMITED Nodes=n[1-2]\n\
PartitionName=long AllowGroups=ALL Default=NO MaxTime=UNLIMITED MaxCPUsPerNode=4 Nodes=n1\n\
PartitionName=empty Default=NO MaxTime=UNLIMITED\n";

fn convert(resources: &str, cluster: Option<&Capacity>, partition: Option<&str>) -> String {
    let method = format!("{{\"name\": \"deep\", \"resources\": {{{resources}}}}}");
    let outcome = Resources::parse(&method).and_then(|resources| sbatch_line(&resources, cluster, partition));
    outcome.unwrap_or_else(|refusal| format!("refused: {refusal}"))
}

#[test]
fn converts_resources_to_arguments() {
    let cluster = Capacity::parse(NODES, PARTITIONS);
    let mut seen = String::new();
    for resources in [
        "",
        r#""min_memory_mb": 8192, "cpus": 4, "gpus": 1"#,
        r#""memory_mb": 8192, "time_limit": "12:00:00", "exclusive": true"#,
        r#""memory_mb": 100, "min_memory_mb": 100"#,
        r#""memory_mb": 200, "min_memory_mb": 100"#,
        r#""cpus": 0"#,
        r#""cpus": 0, "gpus": 2"#,
        r#""cpus": null, "gpus": 0, "time_limit": 60, "exclusive": false"#,
    ] {
        seen += &format!("{{{resources}}}\n  here:    {}\n", convert(resources, Some(&cluster), None));
        seen += &format!("  offline: {}\n", convert(resources, None, None));
    }
    seen += &format!("long: {}\n", convert(r#""cpus": 0, "time_limit": "UNLIMITED""#, Some(&cluster), Some("long")));
    insta::assert_snapshot!(seen);
}

#[test]
fn names_missing_resource() {
    let cluster = Capacity::parse(NODES, PARTITIONS);
    let mut seen = String::new();
    for (resources, partition) in [
        (r#""gpus": 4"#, None),
        (r#""cpus": 63"#, None),
        (r#""cpus": 5"#, Some("long")),
        (r#""memory_mb": 256001"#, None),
        (r#""min_memory_mb": 250000"#, None),
        (r#""time_limit": "1-00:00:01""#, None),
        (r#""time_limit": "UNLIMITED""#, None),
        (r#""gpus": 1, "cpus": 16"#, None),
        (r#""gpus": 1, "memory_mb": 100000, "cpus": 0"#, None),
        ("", Some("empty")),
        ("", Some("other")),
    ] {
        seen += &format!("{}\n", convert(resources, Some(&cluster), partition));
    }
    let without_gpus = Capacity::parse(NODES.lines().last().unwrap(), PARTITIONS);
    seen += &format!("{}\n", convert(r#""gpus": 1"#, Some(&without_gpus), None));
    let without_default = Capacity::parse(NODES, PARTITIONS.lines().nth(1).unwrap());
    seen += &format!("{}\n", convert("", Some(&without_default), None));
    insta::assert_snapshot!(seen);
}

#[test]
fn refuses_invalid_values_in_quotes() {
    let mut seen = String::new();
    for resources in [
        r#""cpus": -1"#,
        r#""cpus": 1.5"#,
        r#""cpus": 65534"#,
        r#""cpus": "4; rm -rf /""#,
        r#""gpus": "1 --uid=0""#,
        r#""gpus": 1e3"#,
        r#""memory_mb": 0"#,
        r#""memory_mb": 99999999999999999999999999"#,
        r#""min_memory_mb": [1]"#,
        r#""time_limit": "$(reboot)""#,
        r#""time_limit": "1 --wrap=id""#,
        r#""time_limit": 0"#,
        r#""time_limit": "\u001b[2J\u202e""#,
        r#""exclusive": "yes""#,
        r#""exclusive": 1"#,
        r#""gpu": 1"#,
        r#""\u001b[2J": 1"#,
        r#""cpus": 1,"#,
    ] {
        seen += &format!("{}\n", convert(resources, None, None));
    }
    for method in ["", "[]", "{\"resources\": 4}", "{\"resources\": null}", "{}"] {
        let outcome = Resources::parse(method).map(|resources| sbatch_line(&resources, None, None));
        seen += &format!("{method}: {outcome:?}\n");
    }
    insta::assert_snapshot!(seen);
}

#[test]
fn line_has_no_shell_characters() {
    use proptest::prelude::*;
    let value = prop_oneof![
        any::<u64>().prop_map(|number| number.to_string()),
        (0..100_u64).prop_map(|number| number.to_string()),
        any::<bool>().prop_map(|flag| flag.to_string()),
        "\\PC{0,12}".prop_map(|text| serde_json::Value::from(text).to_string()),
        "[0-9:-]{0,12}".prop_map(|text| serde_json::Value::from(text).to_string()),
    ];
    let key = prop::sample::select(vec!["cpus", "min_memory_mb", "memory_mb", "gpus", "time_limit", "exclusive"]);
    proptest!(|(table in prop::collection::hash_map(key, value, 0..6))| {
        let pairs: Vec<String> = table.iter().map(|(key, value)| format!("\"{key}\": {value}")).collect();
        let method = format!("{{\"resources\": {{{}}}}}", pairs.join(", "));
        if let Ok(line) = Resources::parse(&method).and_then(|resources| sbatch_line(&resources, None, None)) {
            prop_assert!(line.bytes().all(|byte| byte.is_ascii_alphanumeric() || b" -=:".contains(&byte)), "{line}");
            prop_assert!(line.split(' ').all(|word| word.starts_with("--")), "{line}");
        }
    });
}
