//! Generates the manual page slurminit.toml(5).

use clap_mangen::roff::{Roff, bold, roman};

use crate::marked::roff_inlines;
use crate::reference::Part;

const DESCRIPTION: &str = "The operator's configuration, as TOML. An empty file is fine: GPUs, CPUs and memory are detected at every start. \
    An unknown key, a wrong type or a syntax error is refused with its line, and exit code 78. Times are in seconds and may be \
    fractional. Environment variables override the file. A change takes effect while the container runs.";

const EXAMPLE: &str = "on_mismatch = \"fail\"

[gpu]
type_name = \"model\"

[slurm.conf]
MaxJobCount = 50000

[[user]]
name = \"alice\"
uid = 1000";

pub(crate) fn page(parts: &[Part]) -> String {
    let mut roff = Roff::new();
    roff.control("TH", ["slurminit.toml", "5", "", concat!("slurminit ", env!("CARGO_PKG_VERSION")), "slurminit"]);
    roff.control("SH", ["NAME"]).text([roman("slurminit.toml - configuration of slurminit")]);
    roff.control("SH", ["SYNOPSIS"]).text([bold("/config/slurminit.toml")]);
    roff.control("SH", ["DESCRIPTION"]).text([roman(DESCRIPTION)]);
    roff.control("SH", ["TOP LEVEL"]);
    let (mut variables, mut table) = (Vec::new(), "");
    for part in parts {
        match part {
            Part::Table { heading, doc } => {
                table = heading;
                roff.control("SH", [heading.as_str()]);
                if !doc.is_empty() {
                    roff.text(roff_inlines(doc));
                }
            }
            Part::Keys { names, kind, default, meaning, variables: overrides } => {
                let default = match default.as_str() {
                    "" | "required" => default.clone(),
                    value => format!("default {value}"),
                };
                let about: Vec<&str> = [kind.as_str(), &default].into_iter().filter(|text| !text.is_empty()).collect();
                roff.control("TP", []);
                roff.text([bold(names.join(", ")), roman(format!("  ({})", about.join("; ").replace('`', "")))]);
                roff.text(roff_inlines(meaning));
                let place = if table.is_empty() { String::new() } else { format!(" in {table}") };
                variables
                    .extend(overrides.iter().map(|name| (name, format!("Wins over {}{place}.", names.join(", ")))));
            }
        }
    }
    variables.sort();
    roff.control("SH", ["ENVIRONMENT"]);
    for (variable, does) in variables {
        roff.control("TP", []).text([bold(variable.as_str())]).text([roman(does)]);
    }
    roff.control("SH", ["FILES"]).control("TP", []).text([bold("/config/slurminit.toml")]);
    roff.text([roman("Where it is looked for; SLURMINIT_CONFIG or --config names another place.")]);
    roff.control("SH", ["EXAMPLES"]).control("nf", []).text([roman(EXAMPLE)]).control("fi", []);
    roff.control("SH", ["SEE ALSO"])
        .text([roman("slurminit(1), slurminit-render(1), slurminit-reload(1), slurm.conf(5)")]);
    roff.render()
}
