package doctor

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ration/internal/agent"
	"ration/internal/job"
)

// An agent of another version than this ration is found out.
func TestAgentVersion(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "jobs")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv(job.EnvFolder, folder)
	t.Setenv(job.EnvRegion, "")
	check := func(version, verdict, text string) {
		t.Helper()
		c := &checker{Options: Options{Version: version}}
		c.checkSocket()
		if got := c.report.Checks; len(got) != 1 || got[0].Verdict != verdict || !strings.Contains(got[0].Text, text) || (got[0].Remedy != "") != (verdict == Warn) {
			t.Errorf("got %+v", got)
		}
	}
	check("0.3.0", Pass, "none runs")
	for _, version := range []string{"0.3.0", ""} {
		socket, release, err := agent.Listen(folder)
		if err != nil {
			t.Fatal(err)
		}
		a, err := agent.New(agent.Options{Folder: folder, Version: version, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(context.Background())
		served, looked := make(chan error, 1), make(chan error, 1)
		go func() { served <- a.Serve(ctx, socket) }()
		go func() { looked <- a.Run(ctx, nil) }()
		if version == "" { // one that does not say
			check("0.3.0", Warn, "is of an earlier version than this, 0.3.0")
		} else {
			check("0.3.0", Pass, "answers")
			check("0.4.0", Warn, "is of version 0.3.0; this is 0.4.0")
		}
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		<-looked
		release()
	}
}

// What systemd says of the unit is put into words, with what to do.
func TestUnit(t *testing.T) {
	for shown, want := range map[string]Check{
		"LoadState=loaded\nActiveState=active\nUnitFileState=enabled\nNeedDaemonReload=no\n":  {Verdict: Pass, Text: "runs, and is enabled"},
		"LoadState=loaded\nActiveState=inactive\nUnitFileState=disabled\n":                    {Verdict: Pass, Text: "does not run, and is disabled"},
		"LoadState=loaded\nActiveState=active\nUnitFileState=disabled\n":                      {Verdict: Warn, Text: "will not after the next start", Remedy: "systemctl enable ration-agent"},
		"LoadState=loaded\nActiveState=failed\nResult=exit-code\n":                            {Verdict: Warn, Text: "has failed: exit-code", Remedy: "journalctl"},
		"LoadState=loaded\nActiveState=activating\nSubState=auto-restart\nResult=exit-code\n": {Verdict: Warn, Text: "again and again", Remedy: "journalctl"},
		"LoadState=loaded\nActiveState=active\nNeedDaemonReload=yes\n":                        {Verdict: Warn, Text: "has changed", Remedy: "daemon-reload"},
		"LoadState=not-found\nActiveState=inactive\n":                                         {Verdict: Warn, Text: "not-found", Remedy: "daemon-reload"},
	} {
		c := &checker{}
		c.checkUnit([]byte(shown), nil)
		if got := c.report.Checks[0]; got.Verdict != want.Verdict || !strings.Contains(got.Text, want.Text) || !strings.Contains(got.Remedy, want.Remedy) {
			t.Errorf("%q: got %+v", shown, got)
		}
	}
	c := &checker{}
	if c.checkUnit(nil, os.ErrNotExist); c.report.Checks[0].Verdict != Skip {
		t.Errorf("got %+v", c.report.Checks)
	}
}
