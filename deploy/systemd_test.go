package deploy

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"ration/check/expect"
	"ration/check/testenv"
)

// unit writes a unit with a program that is there, and returns its path.
func unit(t *testing.T, name string) string {
	t.Helper()
	testenv.HasTool(t, "systemd-analyze")
	text, err := os.ReadFile("systemd/" + name)
	expect.OK(t, err)
	program, err := exec.LookPath("true")
	expect.OK(t, err)
	text = regexp.MustCompile(`(?m)^(ExecStart=)/usr/bin/ration`).ReplaceAll(text, []byte("${1}"+program))
	text = regexp.MustCompile(`(?m)^Documentation=.*\n`).ReplaceAll(text, nil) // of a man page that is not installed
	path := filepath.Join(t.TempDir(), name)
	expect.OK(t, os.WriteFile(path, text, 0o644))
	return path
}

// systemd knows everything in the units.
func TestUnitIsKnown(t *testing.T) {
	for _, name := range []string{"ration-agent.service", "ration-notify.service", "ration-policy.service"} {
		files := []string{unit(t, name)}
		if name == "ration-agent.service" { // each requires the other
			files = append(files, unit(t, "ration-agent.socket"))
		}
		out, err := exec.Command("systemd-analyze", append([]string{"verify", "--man=no"}, files...)...).CombinedOutput()
		expect.True(t, err == nil && !strings.Contains(string(out), "ration-agent.socket:") && !strings.Contains(string(out), name+":"),
			name, err, out)
	}
}

// systemd makes the socket where the agent would, with the mode that it would give it, and takes it away
// again; who starts, enables or stops one of the agent's units does so with the other.
func TestSocketUnit(t *testing.T) {
	for name, lines := range map[string][]string{
		"ration-agent.socket":   {"ListenStream=/run/ration/agent.sock", "SocketMode=0666", "RemoveOnStop=yes", "WantedBy=sockets.target"},
		"ration-agent.service":  {"Requires=ration-agent.socket", "Also=ration-agent.socket", "StartLimitIntervalSec=0", "KillMode=mixed"}, // or five failures in ten seconds end both
		"ration-policy.service": {"StartLimitIntervalSec=0", "KillMode=mixed"},                                                             // or a user's process in it delays its end
	} {
		text, err := os.ReadFile("systemd/" + name)
		expect.OK(t, err)
		for _, line := range lines {
			expect.True(t, strings.Contains(string(text), "\n"+line+"\n"), name, "has no line", line)
		}
	}
}

// What the keeper of a policy mounts is seen by all processes: nothing in its unit gives it a mount
// namespace of its own.
func TestPolicyUnitSharesMounts(t *testing.T) {
	text, err := os.ReadFile("systemd/ration-policy.service")
	expect.OK(t, err)
	private := regexp.MustCompile(`(?m)^(Private(Tmp|Devices|Mounts|Users|Network|IPC)|Protect\w+|ReadWritePaths|ReadOnlyPaths|InaccessiblePaths|BindPaths|BindReadOnlyPaths|TemporaryFileSystem|MountFlags|RootDirectory|RootImage|DynamicUser|ExecPaths|NoExecPaths)=.*$`)
	found := private.FindAll(text, -1)
	expect.True(t, found == nil, "it has a mount namespace of its own by", found)
}

// Both services query the GPU: nothing in their units closes its devices. A DeviceAllow, which ProtectClock implies,
// closes all devices that it does not name.
func TestUnitsLeaveDevicesOpen(t *testing.T) {
	for _, name := range []string{"ration-agent.service", "ration-policy.service"} {
		text, err := os.ReadFile("systemd/" + name)
		expect.OK(t, err)
		found := regexp.MustCompile(`(?m)^(DeviceAllow|DevicePolicy|PrivateDevices|ProtectClock)=.*$`).FindAll(text, -1)
		expect.True(t, found == nil, name, "closes the driver's devices by", found)
	}
}

// The regions of users lie in memory that the kernel counts for who made them, the keeper: with a bound
// on its memory it would be killed with the first user beyond that, and again whenever it starts. The processes that put
// users' jobs to sleep count as its own as well, and a Go program that cannot start a thread ends.
func TestPolicyUnitHasRoomForAllUsers(t *testing.T) {
	text, err := os.ReadFile("systemd/ration-policy.service")
	expect.OK(t, err)
	found := regexp.MustCompile(`(?m)^(Memory\w+|LimitAS|LimitDATA)=.*$`).FindAll(text, -1)
	expect.True(t, found == nil, found, "bounds how many users can have a job")
	expect.True(t, strings.Contains(string(text), "\nTasksMax=infinity\n"), "without it systemd has a bound of its own")
	expect.True(t, strings.Contains(string(text), "\nStartLimitIntervalSec=0\n"), "systemd gives it up when it has failed five times")
}

// With sleep_after the keeper starts processes as users. Without these capabilities the kernel refuses that, and no job
// of a policy ever sleeps.
func TestPolicyUnitStartsProcessesOfUsers(t *testing.T) {
	text, err := os.ReadFile("systemd/ration-policy.service")
	expect.OK(t, err)
	set := regexp.MustCompile(`(?m)^CapabilityBoundingSet=.*$`).FindString(string(text)) + " "
	for _, capability := range []string{"CAP_SETUID", "CAP_SETGID", "CAP_KILL"} {
		expect.True(t, strings.Contains(set, " "+capability+" "), set, "lacks", capability)
	}
}

// The units leave their services little: systemd counts the exposure from 0 to 10. What is left to the agent is what it
// needs: users' files and processes, and the port. The keeper of a policy needs to mount where all processes see it,
// so that everything is closed to it that takes no mount namespace of its own.
func TestUnitIsHardened(t *testing.T) {
	for name, most := range map[string]string{"ration-agent.service": "37", "ration-notify.service": "40", "ration-policy.service": "54"} { // tenths
		cmd := exec.Command("systemd-analyze", "security", "--offline=true", "--threshold="+most, "--no-pager", unit(t, name))
		out, err := cmd.CombinedOutput()
		if strings.Contains(string(out), "unrecognized option") {
			t.Skipf("this systemd-analyze reads no file: %s", out)
		}
		expect.Equal(t, err, nil, name, out)
		t.Logf("%s", regexp.MustCompile(`(?m)^.*Overall exposure.*$`).Find(out))
	}
}

// Who removes ration, by package or by script, stops and disables the agent together with its socket, which
// would start a program that is gone; but not that of another ration.
func TestRemovalStopsAgent(t *testing.T) {
	testenv.NeedsRoot(t, "only root can mount")
	prefix := t.TempDir()
	installed := filepath.Join(prefix, "lib/systemd/system/ration-agent.socket")
	for path, text := range map[string]string{
		"bin/systemctl":   "#!/bin/sh\n[ \"$1\" != show ] || exec echo \"$FRAGMENT\"\necho \"$@\" >>\"$CALLS\"\n",
		"lib/ration/kept": "", // so that the folder stays
	} {
		path = filepath.Join(prefix, path)
		expect.OK(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)))
	}
	// A machine that systemd has started, without a policy, in a mount namespace of its own.
	const script = "mount -t tmpfs none /etc && mount -t tmpfs none /run && mkdir -p /run/systemd/system && exec sh -s \"$@\""
	for _, test := range []struct {
		script, arg, fragment string
		stops                 bool
	}{
		{"prerm", "remove", "", true},
		{"prerm", "0", "", true},
		{"prerm", "upgrade", "", false},
		{"prerm", "1", "", false},
		{"uninstall", "", installed, true},
		{"uninstall", "", "/usr/lib/systemd/system/ration-agent.socket", false},
	} {
		text, err := os.ReadFile(test.script)
		expect.OK(t, err)
		// The script finds its prefix by its own path, which one that is read from a pipe has not.
		text = []byte(strings.Replace(string(text), `$(dirname "$0")/../..`, prefix, 1))
		expect.OK(t, os.WriteFile(filepath.Join(prefix, "lib/ration/files"), []byte("lib/ration/files\n"), 0o644))
		calls := filepath.Join(t.TempDir(), "calls")
		cmd := exec.Command("unshare", "--mount", "sh", "-c", script, "sh", test.arg)
		cmd.Stdin = strings.NewReader(string(text))
		cmd.Env = []string{"PATH=" + filepath.Join(prefix, "bin") + ":" + os.Getenv("PATH"), "FRAGMENT=" + test.fragment, "CALLS=" + calls}
		out, err := cmd.CombinedOutput()
		expect.OK(t, err, test.script, test.arg, out)
		got, _ := os.ReadFile(calls)
		stops := string(got) == "--no-reload disable --now ration-notify.service ration-agent.socket ration-agent.service\n"
		expect.True(t, stops == test.stops && (stops || len(got) == 0),
			test.script, test.arg, "where systemd has", test.fragment, "it calls systemctl", got)
	}
}
