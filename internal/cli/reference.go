package cli

import (
	"github.com/spf13/cobra"

	"ration/internal/limit"
)

// entry is a name with what it means: a variable, a file, an exit status.
type entry struct{ name, text string }

// exitStatuses, variables and files are what every man page has, and ration(7).
var exitStatuses = []entry{
	{"0", "All is well."},
	{"1", "A check failed, or the work could not be done: a limit that may not be changed, a job that could not be removed."},
	{"2", "Bad arguments, or a bad value in the environment. Nothing was done."},
	{"3", "A region or folder could not be opened, or there is no such job."},
	{"126", "ration run: the command exists, and cannot be run."},
	{"127", "ration run: the command was not found."},
	{"130", "Interrupted by Ctrl-C. Other signals likewise: 128 and the signal's number."},
	{"141", "What reads the output has closed it (ration ps | head). Nothing is printed about it."},
	{"143", "Ended by SIGTERM."},
}

// variablesOfRun are for ration run, and for programs with the library preloaded.
var variablesOfRun = []entry{
	{limit.EnvMemory + ", " + limit.EnvMemory + "_<i>", "The memory limit on each device, or on the device of that number: 10g, 1024m, 25%. 0 or none is no limit. --mem comes first."},
	{limit.EnvCompute + ", " + limit.EnvCompute + "_<i>", "A share of a device's time in per cent: 30. --compute comes first."},
	{limit.EnvPolicy, "What " + limit.EnvCompute + " is: default a share, force a cap, disable neither."},
	{limit.EnvComputeMax + ", " + limit.EnvComputeMax + "_<i>", "A cap on a device's time in per cent. --compute-max comes first."},
	{limit.EnvRound, "The time that shares divide: 10ms. --compute-round comes first."},
	{limit.EnvMode, "strict: a program whose share cannot be kept gets an error."},
}

// variablesOfLibrary are for programs with the library preloaded.
var variablesOfLibrary = []entry{
	{"RATION_REGION, CUDA_DEVICE_MEMORY_SHARED_CACHE", "The path of the job's region. ration run sets the first, which comes first. The second is HAMi-core's; ps, why and top show the region that it names as well."},
	{"RATION_LOG", "What the library writes to standard error: error, warn, info or debug. Without it LIBCUDA_LOG_LEVEL, then LOG_LEVEL, 0 to 4, as in HAMi-core."},
	{"LIBCUDA_LOG_LEVEL, LOG_LEVEL", "HAMi-core's names for RATION_LOG, 0 to 4."},
	{"RATION_LOG_FILE", "A file to write the log to instead. %p is the PID, %j the job."},
	{"RATION_FAIL", "open: a program whose job cannot be used runs without limits. Otherwise CUDA is refused to it."},
	{"CUDA_DISABLE_CONTROL", "true: no limits for this program, unless ration run started it."},
	{"CUDA_OVERSUBSCRIBE, CUDA_TASK_PRIORITY, ACTIVE_OOM_KILLER", "HAMi-core's. They have no effect here, and a warning says so."},
	{"RATION_JOB, RATION_JOB_CREATED", "The job's name and the time at which it was made, for the library. ration run sets them."},
	{"RATION_HOSTPID", "probe: a process in a container finds its PID outside by the driver's list of processes, where ration ps is not run outside."},
}

// variablesOfAll are for all commands.
var variablesOfAll = []entry{
	{"RATION_DIR", "The folder of jobs, instead of those below."},
	{"RATION_LIB", "The folder into which the library is unpacked, instead of those below."},
	{"XDG_RUNTIME_DIR, TMPDIR, XDG_CACHE_HOME", "Where these folders are for users who are not root."},
	{"NO_COLOR", "If set, nothing is coloured."},
	{"LC_ALL, LC_CTYPE, LANG", "Where they name no UTF-8 locale, only ASCII is printed."},
	{"TERM", "dumb: nothing is drawn in place."},
}

var files = []entry{
	{"/run/ration/JOB/region", "A job of root: its limits, and what each process holds. Beside it: info (how it was started), and region.limits (limits that only the file's owner can change)."},
	{"$XDG_RUNTIME_DIR/ration/JOB/region, /tmp/ration-UID/JOB/region", "A job of another user. ~/.local/state/ration/JOB where another user has made that folder."},
	{"/run/ration/lib, /var/lib/ration/lib, ~/.cache/ration/lib", "The unpacked library, in a folder named by its content."},
	{"/usr/lib/ration/libration.so", "The library, where a package installed it."},
	{"/etc/ld.so.preload", "What ration run --keep mounts over, for its job only. A policy has a line in it."},
	{"/etc/ration/config.toml, /etc/ration/in-force.toml", "The policy of a machine, and the copy of it that is in force."},
	{"/run/ration/user-UID/region", "The job of all programs of a user, where a policy is in force."},
	{"/run/ration/user-UID-NAME/region", "A run: what ration run --mem has of a user's ration there."},
	{"/run/ration/agent.sock", "Where root's agent answers: made by it, or by ration-agent.socket of systemd. An ordinary user's is beside that user's jobs."},
	{"/run/ration-agent", "What root's agent remembers of the events that it has logged. It is the folder of user ration, as whom that agent reads."},
	{"/usr/lib/ration/policy/libration.so", "The library that a policy has every program load."},
}

// variablesOf returns the variables that a command looks at.
func variablesOf(command string) (out []entry) {
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

// Reference is what man pages are written of (cmd/ration-man).
type Reference struct {
	Root    *cobra.Command
	Version string
}

// Section is a section that every page has.
type Section struct {
	Title   string
	Entries []Entry
}

// Entry is a name with what it means.
type Entry struct{ Name, Text string }

// ReferenceOf returns the reference of this version.
func ReferenceOf() Reference { return Reference{newRootCommand(&app{}), version} }

// Sections returns what holds for a command, by its name, and all others.
func (Reference) Sections(command string) (out []Section) {
	for _, s := range []struct {
		title   string
		entries []entry
	}{{"EXIT STATUS", exitStatuses}, {"ENVIRONMENT", variablesOf(command)}, {"FILES", files}} {
		section := Section{Title: s.title}
		for _, e := range s.entries {
			section.Entries = append(section.Entries, Entry{e.name, e.text})
		}
		out = append(out, section)
	}
	return out
}
