package doctor

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ration/check/expect"
	"ration/internal/agent"
	"ration/internal/job"
)

// An agent of another version than this ration is found out.
func TestAgentVersion(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "jobs")
	expect.OK(t, os.Mkdir(folder, 0o700))
	t.Setenv(job.EnvFolder, folder)
	t.Setenv(job.EnvRegion, "")
	check := func(version, verdict, text string) {
		t.Helper()
		c := &checker{Options: Options{Version: version}}
		c.checkSocket()
		got := c.report.Checks
		expect.True(t, len(got) == 1 && got[0].Verdict == verdict && strings.Contains(got[0].Text, text) && (got[0].Remedy != "") == (verdict == Warn), got)
	}
	check("0.3.0", Pass, "none runs")
	for _, version := range []string{"0.3.0", ""} {
		claim, err := agent.ClaimFolder(folder)
		expect.OK(t, err)
		a, err := agent.New(agent.Options{Folder: folder, Version: version, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
		expect.OK(t, err)
		ctx, stop := context.WithCancel(context.Background())
		served, looked := make(chan error, 1), make(chan error, 1)
		go func() { served <- a.Serve(ctx, claim.Listener()) }()
		go func() { looked <- a.Run(ctx, nil) }()
		if version == "" { // one that does not say
			check("0.3.0", Warn, "its version is older than this one, 0.3.0")
		} else {
			check("0.3.0", Pass, "answers")
			check("0.4.0", Warn, "has version 0.3.0; this is 0.4.0")
		}
		stop()
		expect.Equal(t, <-served, nil)
		<-looked
		claim.Release()
	}
}

// What systemd says of the units is put into words, with what to do.
func TestUnits(t *testing.T) {
	const (
		running  = "LoadState=loaded\nActiveState=active\nSubState=running\nNeedDaemonReload=no\n"
		inactive = "LoadState=loaded\nActiveState=inactive\nSubState=dead\n"
		enabled  = "UnitFileState=enabled\n"
		disabled = "UnitFileState=disabled\n"
	)
	for _, test := range []struct {
		service, socket string
		want            Check
	}{
		{running + enabled, running + enabled, Check{Verdict: Pass, Text: "runs, and is enabled"}},
		{running + enabled, running + disabled, Check{Verdict: Pass, Text: "runs, and is enabled"}}, // which starts the socket
		{running + disabled, running + enabled, Check{Verdict: Pass, Text: "from the first question on"}},
		{running + disabled, running + disabled, Check{Verdict: Warn, Text: "will not start at the next boot", Remedy: "systemctl enable ration-agent"}},
		{running + enabled, inactive + enabled, Check{Verdict: Warn, Text: "ration-agent.socket is inactive", Remedy: "systemctl restart ration-agent"}},
		{running + enabled, "", Check{Verdict: Pass, Text: "runs, and is enabled"}}, // a unit without a socket
		{running + disabled, "", Check{Verdict: Warn, Text: "will not start at the next boot"}},
		{"LoadState=masked\nActiveState=inactive\n", inactive + disabled, Check{Verdict: Warn, Text: "ration-agent.service is masked", Remedy: "systemctl unmask ration-agent.service"}},
		{inactive + disabled, running + enabled, Check{Verdict: Pass, Text: "the next question starts it; ration-agent.socket is enabled"}},
		{inactive + disabled, inactive + disabled, Check{Verdict: Pass, Text: "does not run, and is disabled"}},
		{"LoadState=loaded\nActiveState=failed\nResult=exit-code\n", running, Check{Verdict: Warn, Text: "service has failed: exit-code", Remedy: "journalctl"}},
		{inactive, "LoadState=loaded\nActiveState=failed\nResult=service-start-limit-hit\n", Check{Verdict: Warn, Text: "socket has failed: service-start-limit-hit", Remedy: "journalctl"}},
		{"LoadState=loaded\nActiveState=activating\nSubState=auto-restart\nResult=exit-code\n", running, Check{Verdict: Warn, Text: "keeps ending", Remedy: "journalctl"}},
		{running + "NeedDaemonReload=yes\n", running, Check{Verdict: Warn, Text: "service has changed", Remedy: "daemon-reload"}},
		{"LoadState=not-found\nActiveState=inactive\n", running, Check{Verdict: Warn, Text: "service is installed, but systemd reports it as \"not-found\"", Remedy: "daemon-reload"}},
		{running + enabled, "LoadState=not-found\nActiveState=inactive\n", Check{Verdict: Warn, Text: "socket is installed, but systemd reports it as \"not-found\"", Remedy: "daemon-reload"}},
	} {
		c := &checker{}
		var socket unitState
		if test.socket != "" {
			socket = parseUnit(test.socket)
		}
		c.checkUnits(parseUnit(test.service), socket)
		if got := c.report.Checks; len(got) != 1 || got[0].Verdict != test.want.Verdict || !strings.Contains(got[0].Text, test.want.Text) || !strings.Contains(got[0].Remedy, test.want.Remedy) {
			t.Errorf("%q, %q: got %+v", test.service, test.socket, got)
		}
	}
}

// A notifier that keeps failing is told of, and one that does not run although the file has sections.
func TestNotifyUnit(t *testing.T) {
	for shown, want := range map[string]string{
		"LoadState=loaded\nActiveState=active\nSubState=running\n":                            "pass: ration-notify.service runs",
		"LoadState=loaded\nActiveState=inactive\nSubState=dead\n":                             "",
		"LoadState=masked\nActiveState=inactive\n":                                            "",
		"LoadState=loaded\nActiveState=activating\nSubState=auto-restart\nResult=exit-code\n": "warn: ration-notify.service keeps ending: exit-code (journalctl -u ration-notify says more)",
		"LoadState=loaded\nActiveState=failed\nResult=start-limit-hit\n":                      "warn: ration-notify.service has failed: start-limit-hit (journalctl -u ration-notify says more; then systemctl restart ration-notify)",
	} {
		c := &checker{}
		c.checkNotifyUnit("ration-notify.service", parseUnit(shown), 0)
		got := ""
		for _, one := range c.report.Checks {
			if got = string(one.Verdict) + ": " + one.Text; one.Remedy != "" {
				got += " (" + one.Remedy + ")"
			}
		}
		expect.Equal(t, got, want)
	}
	c := &checker{}
	c.checkNotifyUnit("ration-notify.service", parseUnit("LoadState=loaded\nActiveState=inactive\n"), 2)
	got := c.report.Checks
	expect.True(t, len(got) == 1 && got[0].Verdict == Warn && got[0].Remedy == "systemctl enable --now ration-notify" &&
		strings.Contains(got[0].Text, "has 2 [[notify]] sections, and ration-notify.service does not run: nothing is sent"), got)
}

// Where the user is missing as whom root's agent reads, that is said, with what to do.
func TestAgentUser(t *testing.T) {
	for name, want := range map[string]struct{ verdict, text, remedy string }{
		"no-such-user-of-ration": {Warn, "there is no user no-such-user-of-ration", "systemd-sysusers"},
		"root":                   {Warn, "user root is root", "a number of its own"},
		"nobody":                 {Pass, "nobody, ", ""},
	} {
		c := &checker{}
		c.checkAgentUser(name)
		got := c.report.Checks
		expect.True(t, len(got) == 1 && got[0].Verdict == want.verdict && strings.Contains(got[0].Text, want.text) && strings.Contains(got[0].Remedy, want.remedy), name, got)
	}
}

// Advice names systemctl only where systemd runs.
func TestAdviceWithoutSystemd(t *testing.T) {
	defer func(old string) { systemdFolder = old }(systemdFolder)
	systemdFolder = t.TempDir()
	expect.True(t, strings.Contains(restartAgent(), "systemctl"), restartAgent())
	systemdFolder = filepath.Join(t.TempDir(), "none")
	c := &checker{}
	c.checkAgentUser("no-such-user")
	expect.True(t, len(c.report.Checks) == 1 && c.report.Checks[0].Verdict == Warn && !strings.Contains(c.report.Checks[0].Remedy, "systemctl"), c.report.Checks)
}
