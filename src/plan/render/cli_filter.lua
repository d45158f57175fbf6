-- srun, sbatch and salloc run this before they submit. It chooses the MPI plugin of a step: one task needs no PMIx, whose start takes about
-- 20 ms, and MPICH needs PMI-2. It warns about requests that Slurm accepts but does not fulfill.
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

-- The components of a heterogeneous step, which a colon separates, are one MPI job. `options` contains one of them.
local function may_be_component(options)
  local file = io.open("/proc/self/cmdline", "rb")
  local words = file and file:read("*a") or "\0:\0"
  if file then
    file:close()
  end
  return options["het-group"] ~= nil or os.getenv("SLURM_HET_SIZE") ~= nil or words:find("\0:\0", 1, true) ~= nil
end

-- The beginning of a file, or nil.
local function beginning(path, bytes)
  local file = io.open(path, "rb")
  local text = file and file:read(bytes)
  if file then
    file:close()
  end
  return text
end

local function exists(path)
  local file, _, code = io.open(path, "rb")
  if file then
    file:close()
  end
  return file ~= nil or (code ~= 2 and code ~= 20) -- ENOENT, ENOTDIR
end

-- The file that a shell would execute.
local function program_file(name)
  if name:find("/", 1, true) then
    return name
  end
  for directory in (os.getenv("PATH") or ""):gmatch("[^:]+") do
    if exists(directory .. "/" .. name) then
      return directory .. "/" .. name
    end
  end
end

-- Whether the program, or the Python environment of a script, uses MPICH. Their libraries are found by name: MPICH's is libmpi.so.12
-- (its common ABI, Intel's too) or Debian's libmpich.so.12, and Open MPI's is libmpi.so.40.
local function uses_mpich(name, is_interpreter)
  local path = name and program_file(name)
  local text = path and beginning(path, 4 * 1024 * 1024) or ""
  local interpreter = text:match("^#!%s*([^%s]+)")
  if interpreter and not is_interpreter then
    return uses_mpich(interpreter, true)
  elseif text:sub(1, 4) ~= "\127ELF" then
    return false
  elseif text:find("libmpi.so.12", 1, true) or text:find("libmpich.so.12", 1, true) then
    return true
  end
  local lib = path:gsub("[^/]*$", "") .. "../lib/"
  return exists(lib .. "libmpi.so.12") and not exists(lib .. "libmpi.so.40")
end

local function choose_mpi(options)
  if options["mpi"] ~= nil then
    return
  elseif has_one_task(options) and not may_be_component(options) then
    options["mpi"] = "none"
  elseif uses_mpich(options["argv"][1], false) then
    options["mpi"] = "pmi2"
  end
end

local function warn(options, text)
  io.stderr:write(options["type"], ": warning: ", text, "\n")
end

-- Prints the nearest existing directory, or the file, if the user may not write there. slurmstepd creates missing directories (24.11,
-- `mkdirpath`), and writes its message about a failure only to the node's log.
local FIND_UNWRITABLE = [[
until [ -e "$p" ]; do case $p in */*) p=${p%/*} && [ -n "$p" ] || p=/ ;; *) p=. ;; esac; done
[ -w "$p" ] || printf %s "$p"]]

local function check_output(options, option, path)
  local fixed = path:match("^[^%%]*")
  if fixed ~= path then
    fixed = fixed:match("^(.*[^/])/") or fixed:match("^/") or "."
  end
  local base = options["chdir"]
  if base and fixed:sub(1, 1) ~= "/" then
    fixed = fixed == "." and base or base .. "/" .. fixed
  end
  local shell = io.popen("p='" .. fixed:gsub("'", "'\\''") .. "'\n" .. FIND_UNWRITABLE)
  local unwritable = shell:read("*a")
  shell:close()
  if unwritable ~= "" then
    warn(options, "--" .. option .. "=" .. path .. " cannot be written: no permission in " .. unwritable
      .. "; where that holds on the job's node, too, the job fails with exit code 0:53 and writes no output")
  end
end

local function warn_of_options(options)
  local mail = options["mail-type"]
  if without_mail and mail and mail ~= "NONE" then
    warn(options, "--mail-type has no effect: this cluster has no mail program (MailProg)")
  end
  if options["type"] == "sbatch" then
    check_output(options, "output", options["output"] or "slurm-%j.out")
    if options["error"] then
      check_output(options, "error", options["error"])
    end
  end
end

-- A host name of 12 hexadecimal digits is a container ID.
local function has_host_named_by_id()
  local hosts = io.popen("sinfo --noheader --format=%n 2>/dev/null")
  local found = false
  for host in hosts:lines() do
    found = found or host:match("^%x%x%x%x%x%x%x%x%x%x%x%x$") ~= nil
  end
  hosts:close()
  return found
end

-- Warns about programs in a batch script that find this cluster different from others.
local function warn_of_script(options)
  local text = options["wrap"] or beginning(options["argv"][1] or "", 65536) or ""
  local uses_ray = text:find("%f[%w]ray%s+start") or text:find("import%s+ray%f[%W]") or text:find("%f[%w]ray%.init%f[%W]")
  if shares_tmp and uses_ray and not text:find("RAY_TMPDIR", 1, true) and not os.getenv("RAY_TMPDIR") then
    warn(options, "jobs share /tmp, where Ray finds files of other jobs; add to the script: export RAY_TMPDIR=\"$(mktemp -d)\"")
  end
  if (text:find("%f[%w]hostname%f[%W]") or text:find("gethostname", 1, true)) and has_host_named_by_id() then
    warn(options, "the name that hostname prints is a container ID on some nodes; the node's name is in $SLURMD_NODENAME")
  end
end

-- An error in this script would make Slurm reject the job.
function slurm_cli_pre_submit(options, component)
  if chooses_mpi and options["type"] == "srun" then
    pcall(choose_mpi, options)
  end
  pcall(warn_of_options, options)
  if options["type"] == "sbatch" then
    pcall(warn_of_script, options)
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
