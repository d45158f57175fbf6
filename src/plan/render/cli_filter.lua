-- Slurm runs this in srun, before the step starts: a step of one task needs no PMIx, whose start takes about 20 ms.
-- To change it: MpiDefault or CliFilterPlugins in [slurm.conf] of /config/slurminit.toml. A file without the first line is kept.

local function is_unset(value)
  return value == nil or value == "-2" or value == "0"
end

local function has_one_task(options)
  local nodes, list = options["nodes"] or "1", options["nodelist"] or ""
  return options["ntasks"] == "1"
    and (nodes == "1" or nodes == "1-0" or nodes == "1-1")
    and not list:find("[,%[]") and options["nodefile"] == nil and os.getenv("SLURM_HOSTFILE") == nil
    and is_unset(options["ntasks-per-node"])
    and is_unset(options["ntasks-per-gpu"])
    and is_unset(options["ntasks-per-tres"])
end

-- The components of a heterogeneous step, which a colon separates, are one MPI job. `options` has one of them.
local function may_be_component(options)
  local file = io.open("/proc/self/cmdline", "rb")
  local words = file and file:read("*a") or "\0:\0"
  if file then
    file:close()
  end
  return options["het-group"] ~= nil or os.getenv("SLURM_HET_SIZE") ~= nil or words:find("\0:\0", 1, true) ~= nil
end

function slurm_cli_pre_submit(options, component)
  if options["type"] == "srun" and options["mpi"] == nil and has_one_task(options) and not may_be_component(options) then
    options["mpi"] = "none"
  end
  return slurm.SUCCESS
end

-- Slurm requires these functions, too.
function slurm_cli_setup_defaults(options, early)
  return slurm.SUCCESS
end

function slurm_cli_post_submit(component, job, step)
  return slurm.SUCCESS
end
