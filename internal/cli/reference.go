package cli

import (
	"github.com/spf13/cobra"

	"ration/check/bench"
	"ration/check/scenario"
	"ration/internal/doctor"
	"ration/internal/fleet"
	"ration/internal/launch"
	"ration/internal/limit"
	"ration/internal/policy"
	"ration/internal/sleep"
	"ration/internal/usage"
	"ration/machine"
)

// Entry explains a name: a word, a variable, a file, or an exit status.
type Entry struct{ Name, Text string }

// words, exitStatuses, variables and files apply to all commands.
var words = []Entry{
	{"job", "A command and all processes that it starts. They share one limit for each device. Give a job as the name that ration ps shows, or as the path of its region: " +
		"an argument with a slash in it is a path. Root gives a job of another user as USER/NAME; for root, a plain name means root's own job, otherwise the only running job of that name, otherwise the only job of that name. " +
		"If several users have such a job, or the jobs of a user cannot be read, the name is refused."},
	{"region", "The file with a job's limits and the account of each of its processes. A slot is the number of an account."},
	{"size", "10g, 10GiB, 1024m, plain bytes, or 25% of a device. Multiples are binary: 1k is 1024 bytes. none is no limit; 0 is refused. " +
		"Limits by device are 0=10g,1=20g, or 10g,1=20g for 20g on device 1 and 10g on the others."},
	{"context", "What each CUDA process holds before its first tensor, 518 MiB on an H200. It counts."},
	{"JSON", "Every command that prints data takes --json, and then prints one JSON value on standard output. ration schema COMMAND prints its JSON Schema. Sizes are bytes. Times (at, and all names that end in _at) are as in RFC 3339, in UTC. " +
		"Fields may be added; none is renamed or removed without a new major version. Errors and warnings go to standard error. Text for people may change."},
}

var exitStatuses = []Entry{
	{"0", "All is well."},
	{"1", "A check failed, or the work could not be done: a limit that may not be changed, a job that could not be removed."},
	{"2", "Bad arguments, or a bad value in the environment. Nothing was done."},
	{"3", "A region or folder could not be opened, or there is no such job."},
	{"126", "ration run: the command exists, and cannot be run."},
	{"127", "ration run: the command was not found."},
	{"130", "Interrupted by Ctrl-C. Other signals likewise: 128 and the signal's number."},
	{"141", "The reader of the output has closed it (ration ps | head). Nothing is printed about it."},
	{"143", "Ended by SIGTERM."},
}

// variablesOfRun are for ration run, and for programs with the library preloaded.
var variablesOfRun = []Entry{
	{limit.EnvMemory + ", " + limit.EnvMemory + "_<i>", "The memory limit on each device, or on the device of that number: 10g, 1024m, 25%. 0 or none is no limit. --mem comes first."},
	{limit.EnvCompute + ", " + limit.EnvCompute + "_<i>", "A share of a device's time in per cent: 30. --compute comes first."},
	{limit.EnvPolicy, "What " + limit.EnvCompute + " is: default a share, force a cap, disable neither."},
	{limit.EnvComputeMax + ", " + limit.EnvComputeMax + "_<i>", "A cap on a device's time in per cent. --compute-max comes first."},
	{limit.EnvPriority, "high, normal or low: which jobs come first on a GPU. --priority comes first."},
	{limit.EnvWaitAlloc, "For how long a request that does not fit waits for memory of the job: 30s. --wait-alloc comes first."},
	{sleep.EnvMemory, "How much host memory your sleeping jobs may take together: 100g, or 50% of all, which it is without it. With a policy, sleep_memory of its file comes first."},
	{launch.EnvSleepFast, "1: GPU memory is moved with several threads when the job sleeps and wakes. --sleep-fast sets it."},
	{"CUDA_TASK_PRIORITY", "HAMi-core's: 0 is high, 1 is low. " + limit.EnvPriority + " comes first."},
	{limit.EnvRound, "The time that shares divide: 10ms. --compute-round comes first."},
	{limit.EnvMode, "strict: a program whose share cannot be kept gets an error."},
}

// variablesOfLibrary are for programs with the library preloaded.
var variablesOfLibrary = []Entry{
	{"RATION_REGION, CUDA_DEVICE_MEMORY_SHARED_CACHE", "The path of the job's region. ration run sets the first, which comes first. The second is HAMi-core's; ps, why and top show the region that it names as well."},
	{"RATION_LOG", "What the library writes to standard error: error, warn, info or debug, or 0 to 4 as in HAMi-core. Without it LIBCUDA_LOG_LEVEL, then LOG_LEVEL."},
	{"LIBCUDA_LOG_LEVEL, LOG_LEVEL", "HAMi-core's names for RATION_LOG, with the same values."},
	{"RATION_LOG_FILE", "A file to write the log to instead. %p is the PID, %j the job. While it cannot be opened, lines go to standard error."},
	{"RATION_FAIL", "open: a program whose job cannot be used runs without limits. Otherwise CUDA is refused to it."},
	{"CUDA_DISABLE_CONTROL", "true: no limits for this program, unless ration run started it."},
	{"CUDA_OVERSUBSCRIBE, ACTIVE_OOM_KILLER", "HAMi-core's. They have no effect here, and a warning says so."},
	{"RATION_JOB, RATION_JOB_CREATED", "The job's name and the time at which it was made, for the library. ration run sets them."},
	{"RATION_HOSTPID", "probe: a process in a container finds its PID outside by the driver's list of processes, where ration ps is not run outside."},
}

// variablesOfAll are for all commands.
var variablesOfAll = []Entry{
	{"RATION_DIR", "The folder of jobs, instead of those below."},
	{"RATION_LIB", "The folder into which the library is unpacked, instead of those below."},
	{"HOME, XDG_CACHE_HOME", "Locations of these folders for ordinary users."},
	{"NO_COLOR", "If set, nothing is coloured."},
	{"LC_ALL, LC_CTYPE, LANG", "Without a UTF-8 locale, only ASCII is printed."},
	{"TERM", "dumb: nothing is drawn in place."},
}

var files = []Entry{
	{"/run/ration/JOB/region", "A job of root: its limits, and what each process holds. Beside it: info (how it was started), and region.limits (limits that only the file's owner can change)."},
	{"/tmp/ration-UID/JOB/region", "A job of another user. ~/.local/state/ration/JOB where another user has made that folder. Under a policy /tmp/ration-UID/JOB is the record of a run."},
	{"/run/ration/lib, /var/lib/ration/lib, /tmp/ration-UID/lib, ~/.cache/ration/lib", "The unpacked library, in a folder named by its content."},
	{"/usr/lib/ration/libration.so", "The library, where a package installed it."},
	{"/etc/ld.so.preload", "What ration run --keep mounts over, for its job only. A policy has a line in it."},
	{"/etc/ration/config.toml, /etc/ration/in-force.toml", "The policy of a machine, and the copy of it that is in force."},
	{"/run/ration/user-UID/region", "The job of all programs of a user, where a policy is in force."},
	{"/run/ration/user-UID-NAME/region", "A run: the part of a user's ration that ration run --mem has taken."},
	{"/run/ration/agent.sock", "Where root's agent answers: made by it, or by ration-agent.socket of systemd. An ordinary user's is beside that user's jobs."},
	{"/var/lib/ration-agent", "The accounts of usage that ration report reads, kept by root's agent. An ordinary user's agent keeps them in ~/.local/state/ration, or in RATION_DIR if it is set."},
	{"/run/ration-agent", "The journal of events that root's agent has logged. The folder belongs to user ration, because that agent runs as this user."},
	{"/usr/lib/ration/policy/libration.so", "The library that every program loads under a policy."},
}

// variablesOf returns the variables that a command reads.
func variablesOf(command string) (out []Entry) {
	switch command {
	case "run", "ration":
		out = append(append(out, variablesOfRun...), variablesOfLibrary...)
	case "library", "doctor":
		out = append(out, variablesOfLibrary...)
	case "demo":
		out = append(out, variablesOfRun[0])
	case "ps", "why", "top":
		out = append(out, variablesOfLibrary[0])
	}
	return append(out, variablesOfAll...)
}

// outputs are the values that commands print with --json.
var outputs = map[string]any{
	"bench": bench.Measurement{}, "create": Created{}, "demo": scenario.DemoReport{}, "doctor": doctor.Report{}, "events": machine.Event{}, "fleet": fleet.State{}, "inspect": Inspection{},
	"library": Library{}, "limit": ShownLimits{}, "notify": Notified{}, "ps": machine.Machine{}, "queue": Queue{}, "rm": Removals{}, "run": launch.Summary{}, "schema": Schemas{}, "selftest": scenario.SelftestReport{}, "signal": Stopped{}, "sleep": Slept{}, "stop": Stopped{}, "wake": Slept{},
	"report": usage.Report{}, "version": Version{}, "wait": Waited{}, "web": Page{}, "why": Why{},
	"policy apply": PolicyApplied{}, "policy ask": policy.Standing{}, "policy check": PolicyChecked{}, "policy disable": PolicyEnded{}, "policy enable": PolicyApplied{}, "policy enable" + dryRun: PolicyPlanned{}, "policy move": policy.Standing{}, "policy show": PolicyShown{},
}

// pages are the docs pages about a command.
var pages = map[string][]string{
	"run": {"running.md", "compute.md", "waiting.md"}, "queue": {"waiting.md"}, "sleep": {"sleep.md"}, "wake": {"sleep.md"}, "create": {"containers.md", "slurm.md"}, "cdi": {"containers.md"}, "mount": {"slurm.md"}, "kube": {"kubernetes.md"},
	"policy": {"shared-server.md"}, "notify": {"monitoring.md"}, "ps": {"scripting.md"}, "schema": {"scripting.md"}, "web": {"monitoring.md", "fleet.md", "security.md"}, "fleet": {"fleet.md"}, "agent": {"monitoring.md"}, "events": {"monitoring.md"},
	"metrics": {"monitoring.md"}, "limit": {"compute.md"}, "why": {"troubleshooting.md"}, "doctor": {"troubleshooting.md"}, "library": {"from-hami-core.md"},
	"bench": {"benchmarks.md"},
}

// Reference is the input from which cmd/ration-man writes the man pages and docs/commands.md.
type Reference struct {
	Root    *cobra.Command
	Version string
	Words   []Entry
	Outputs map[string]any      // by the command's name without ration
	Pages   map[string][]string // by the command's name without ration
}

// Section is a list of names with explanations, under a title.
type Section struct {
	Title   string
	Entries []Entry
}

// ReferenceOf returns the reference of this version.
func ReferenceOf() Reference {
	return Reference{newRootCommand(&app{}), version, words, outputs, pages}
}

// Sections returns the sections for a command, given its name and the names of all others.
func (Reference) Sections(command string) []Section {
	return []Section{{"EXIT STATUS", exitStatuses}, {"ENVIRONMENT", variablesOf(command)}, {"FILES", files}}
}
