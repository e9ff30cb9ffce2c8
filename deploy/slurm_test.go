package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"ration/check/expect"
)

// slurmNode is a folder with Slurm's scripts, their settings and state, and programs that they call.
type slurmNode struct {
	t      *testing.T
	folder string
}

func newSlurmNode(t *testing.T) slurmNode {
	t.Helper()
	n := slurmNode{t, t.TempDir()}
	for _, name := range []string{"prolog", "epilog", "task", "account", "functions"} {
		text, err := os.ReadFile("slurm/" + name)
		expect.OK(t, err)
		n.write(name, strings.NewReplacer("/etc/ration/slurm.conf", n.path("conf"), "/run/ration-slurm", n.path("state"), "/var/lib/ration-agent/usage.db", n.path("usage.db")).Replace(string(text)))
	}
	n.write("conf", "SHARDS=8\nPRIORITIES='serve=high batch=low'\nQOS_PRIORITIES='premium=high scavenger=low'\nPATH="+n.folder+":$PATH\n")
	n.write("ration", "#!/bin/sh\necho \"$*\" >>"+n.path("calls")+"\n")
	return n
}

func (n slurmNode) path(name string) string { return filepath.Join(n.folder, name) }

func (n slurmNode) write(name, text string) {
	n.t.Helper()
	if err := os.WriteFile(n.path(name), []byte(text), 0o755); err != nil {
		n.t.Fatal(err)
	}
}

func (n slurmNode) read(name string) string {
	text, _ := os.ReadFile(n.path(name))
	return string(text)
}

// run runs a script for job 7, and returns what it prints.
func (n slurmNode) run(script string, args []string, env ...string) (string, error) {
	n.t.Helper()
	cmd := exec.Command(n.path(script), args...)
	cmd.Env = append([]string{"SLURM_JOB_ID=7", "SLURMD_NODENAME=n1"}, env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// A job's ration is what Slurm's library says. What a user can write, and every command that prints it, is not read.
func TestHostileSlurmProlog(t *testing.T) {
	for name, c := range map[string]struct {
		shards string // the script
		env    []string
		answer string
		create string // of ration
	}{
		"one shard":        {"echo 1 0 all", nil, "join slurm-7", "create slurm-7 --mem 1m,0=12.5000%"},
		"three of device":  {"echo 3 1 all", nil, "join slurm-7", "create slurm-7 --mem 1m,1=37.5000%"},
		"none":             {"echo none", nil, "none", ""},
		"no partition":     {"echo 1 0", nil, "refuse its shards on n1 are not known", ""},
		"a partition":      {"echo 1 0 batch", nil, "join slurm-7", "create slurm-7 --mem 1m,0=12.5000% --priority low"},
		"another one":      {"echo 1 0 serve", nil, "join slurm-7", "create slurm-7 --mem 1m,0=12.5000% --priority high"},
		"a QOS":            {"echo 1 0 all:scavenger", nil, "join slurm-7", "create slurm-7 --mem 1m,0=12.5000% --priority low"},
		"QOS first":        {"echo 1 0 batch:premium", nil, "join slurm-7", "create slurm-7 --mem 1m,0=12.5000% --priority high"},
		"another QOS":      {"echo 1 0 batch:normal", nil, "join slurm-7", "create slurm-7 --mem 1m,0=12.5000% --priority low"},
		"a QOS like it":    {"echo 1 0 premium:batch", nil, "join slurm-7", "create slurm-7 --mem 1m,0=12.5000%"},
		"an odd QOS":       {"echo '1 0 batch:?'", nil, "refuse its QOS is not known on n1", ""},
		"none and a QOS":   {"echo none all:premium", nil, "none", ""},
		"by the user":      {"echo 1 0 all", []string{"SLURM_JOB_PARTITION=serve", "SLURM_JOB_QOS=serve", "RATION_PRIORITY=high", "PRIORITIES=all=high"}, "join slurm-7", "create slurm-7 --mem 1m,0=12.5000%"},
		"an odd partition": {"echo '1 0 ?'", nil, "refuse its partition is not known on n1", ""},
		"too many":         {"echo 9 0 all", nil, "refuse it has 9 shards, ", ""},
		"an error":         {"echo no answer; exit 1", nil, "refuse its shards on n1 are not known: no answer ", ""},
		"an empty answer":  {":", nil, "refuse its shards on n1 are not known", ""},
		"one number":       {"echo 1 all", nil, "refuse its shards on n1 are not known", ""},
		"three numbers":    {"echo 1 0 0 all", nil, "refuse its shards on n1 are not known", ""},
		"two lines":        {"echo 1 0 all; echo 8 0 all", nil, "refuse its shards on n1 are not known", ""},
		"other characters": {"echo '1 0,0=100% all'", nil, "refuse its shards on n1 are not known", ""},
		"a folder with lines": {"echo 1 0 all", []string{"SLURM_JOB_WORK_DIR=/tmp\nSPANK__SLURM_SPANK_OPTION_ration_ration_mem=100g"},
			"join slurm-7", "create slurm-7 --mem 1m,0=12.5000%"},
		"a size with lines": {"echo 1 0 all", []string{"SPANK__SLURM_SPANK_OPTION_ration_ration_mem=5g\n100g"}, "refuse --ration-mem is not a size", ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := newSlurmNode(t)
			n.write("shards", "#!/bin/sh\n[ \"$*\" = '7 n1' ] || exit 9\n"+c.shards+"\n")
			// The user has written the second and third line into the job's name.
			n.write("scontrol", "#!/bin/sh\ncase $* in *hostnames*) echo n1; exit ;; esac\n"+
				"printf 'JobId=7 JobName=x\\nJobId=7\\n     Nodes=n1 CPU_IDs=0 Mem=0 GRES=shard:8(IDX:0)\\nJobId=1\\n     Nodes=n1 CPU_IDs=0 Mem=0 GRES=shard:1(IDX:0)\\n'\n")
			if out, err := n.run("prolog", nil, c.env...); err != nil {
				t.Fatalf("%v: %s", err, out) // Slurm would drain the node
			}
			got := n.read("state/7")
			expect.True(t, strings.HasPrefix(got, c.answer) && strings.Count(got, "\n") == 1, "tasks are told", got, "want", c.answer)
			expect.Equal(t, strings.TrimSuffix(n.read("calls"), "\n"), c.create, "it called ration")
		})
	}
}

// A task of a job whose prolog did not run, as after a crash of the node, runs it, and once.
func TestSlurmTaskWithoutAnswer(t *testing.T) {
	n := newSlurmNode(t)
	n.write("shards", "#!/bin/sh\n[ \"$*\" = 7 ] && echo 1 0 all\n") // what the environment calls the node is the user's
	for range 2 {
		out, err := n.run("task", []string{"ask", "7", ""}, "SLURMD_NODENAME=evil")
		exit, is := err.(*exec.ExitError)
		expect.Must(t, is && exit.ExitCode() == 3, err, out)
	}
	got, want := n.read("calls"), "create slurm-7 --mem 1m,0=12.5000%\n"
	expect.True(t, got == want, "it called ration", got, "want", want)
	n.write("shards", "#!/bin/sh\nexit 1\n")
	if out, err := n.run("task", []string{"ask", "8", ""}); err == nil || !strings.Contains(out, "are not known") {
		t.Errorf("a task whose shards are not known: %v, %s", err, out)
	}
	// The epilog ends both, and what is left of neither stays.
	if out, err := n.run("epilog", nil); err != nil || n.read("state/7") != "" {
		t.Errorf("%v: %s%s", err, out, n.read("state/7"))
	}
}

// A prolog that is killed after it has made the ration, as by a user who ends the step whose task runs it, leaves none: the
// epilog removes it.
func TestSlurmPrologKilled(t *testing.T) {
	n := newSlurmNode(t)
	n.write("shards", "#!/bin/sh\necho 1 0 all\n")
	n.write("ration", "#!/bin/sh\necho \"$*\" >>"+n.path("calls")+"\n[ \"$1\" != create ] || kill -KILL $PPID\n")
	if out, err := n.run("prolog", nil); err == nil || n.read("state/7") != "" {
		t.Fatalf("%v: %s%s", err, out, n.read("state/7"))
	}
	if out, err := n.run("epilog", nil); err != nil || n.read("state/7") != "" {
		t.Errorf("%v: %s%s", err, out, n.read("state/7"))
	}
	expect.Equal(t, n.read("calls"), "create slurm-7 --mem 1m,0=12.5000%\nrm --force slurm-7\n", "it called ration")
}

// shards reads what slurmctld counts, of this job and this node, and refuses what it does not understand.
func TestHostileSlurmShards(t *testing.T) {
	const header = "/usr/include/slurm/slurm.h"
	if _, err := os.Stat(header); err != nil {
		t.Skipf("libslurm-dev is not installed (make test-slurm installs it): %v", err)
	}
	program := filepath.Join(t.TempDir(), "shards")
	build := exec.Command("cc", "-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined", "-fno-sanitize-recover", "-o", program, "slurm/shards.c", "testdata/libslurm.c")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, c := range []struct {
		gres, args string
		want       string // empty: it fails
		env        []string
	}{
		{gres: "shard:3(IDX:0)", args: "7 n1", want: "3 0 all"},
		{gres: "shard:3(IDX:0)", args: "7", want: "3 0 all"},
		{gres: "shard:h200:3(IDX:1)", args: "7 n1", want: "3 1 all"},
		{gres: "gpu:2(IDX:0,3),shard:3(IDX:12)", args: "7 n1", want: "3 12 all"},
		{gres: "gpu:h200:0,shard:h200:2(IDX:0),mps:0", args: "7 n1", want: "2 0 all"},
		{gres: "shard:3(IDX:0)", args: "7 n1", want: "3 0 a_b-1.c", env: []string{"PARTITION=a_b-1.c"}},
		{gres: "shard:3(IDX:0)", args: "7 n1", want: "3 0 ?", env: []string{"PARTITION=one,two"}},
		{gres: "shard:3(IDX:0)", args: "7 n1", want: "3 0 ?", env: []string{"PARTITION="}},
		{gres: "gpu:1(IDX:0)", args: "7 n1", want: "none"},
		{gres: "gpu:0,shard:0", args: "7 n1", want: "none"},
		{gres: "shard:0(IDX:)", args: "7 n1", want: "none"},
		{gres: "", args: "7 n1", want: "none"},
		{gres: "-", args: "7 n1", want: "none"}, // no entry for any node
		{gres: "-", args: "7 n1", env: []string{"ASKED=gres:shard:1"}},
		{gres: "shard:3(IDX:0-1)", args: "7 n1"},
		{gres: "shard:3(IDX:0,1)", args: "7 n1"},
		{gres: "shard:3", args: "7 n1"},
		{gres: "shard:3(IDX:0", args: "7 n1"},
		{gres: "shard:3(IDX:0)x", args: "7 n1"},
		{gres: "shard:3(S:0)", args: "7 n1"},
		{gres: "shard:-3(IDX:0)", args: "7 n1"},
		{gres: "shard:99999999999999999999(IDX:0)", args: "7 n1"},
		{gres: "shard:1(IDX:0),shard:2(IDX:1)", args: "7 n1"},
		{gres: "shards:1(IDX:0)", args: "7 n1"},
		// The table has n3, n1, n2, and this machine is n2.
		{gres: "shard:1(IDX:0)|shard:2(IDX:1)|shard:3(IDX:2)", args: "7 n1", want: "2 1 all"},
		{gres: "shard:1(IDX:0)|shard:2(IDX:1)|shard:3(IDX:2)", args: "7 n3", want: "1 0 all"},
		{gres: "shard:1(IDX:0)|shard:2(IDX:1)|shard:3(IDX:2)", args: "7", want: "3 2 all"},
		{gres: "shard:1(IDX:0)|shard:2(IDX:1)", args: "7"},
		{gres: "shard:1(IDX:0)|shard:2(IDX:1)", args: "7 n2"},
		{gres: "shard:1(IDX:0)", args: "7 other"},
		{gres: "shard:1(IDX:0)", args: "6 n1"},
		{gres: "shard:1(IDX:0)", args: "7x n1"},
		{gres: "shard:1(IDX:0)", args: "-7 n1"},
		{gres: "shard:1(IDX:0)", args: "4294967303 n1"},
		{gres: "shard:1(IDX:0)", args: ""},
	} {
		cmd := exec.Command(program, strings.Fields(c.args)...)
		cmd.Env = append([]string{"NODELIST=n1,n2,n3", "PARTITION=all"}, c.env...)
		if c.gres != "-" {
			cmd.Env = append(cmd.Env, "GRES="+c.gres)
		}
		out, err := cmd.CombinedOutput()
		got := strings.TrimSuffix(string(out), "\n")
		expect.True(t, (err == nil) == (c.want != "") && (err != nil || got == c.want), c.gres, "shards", c.args, got, err, "want", c.want)
	}
}

// What a job has used is in its AdminComment when it has ended. Lines that other users' names make are not the job's.
func TestHostileSlurmAccount(t *testing.T) {
	const head = "user,project,job,gpu,gpu_seconds,sampled_gpu_seconds,held_byte_seconds,held_error_byte_seconds,idle_byte_seconds,reserved_byte_seconds,peak_bytes,refused,died\n"
	const own = "root,,slurm-7,,12.345,12.345,7730941132800,0,3865470566400,15461882265600,10737418240,3,0\n" // 2, 1 and 4 GiB·h, 10 GiB
	const used = "gib_hours=2.000 idle_gib_hours=1.000 reserved_gib_hours=4.000 gpu_seconds=12.3 peak_gib=10.00 refused=3"
	const wrote = "--immediate\n--quiet\nmodify\njob\nwhere\njobid=7\nset\nAdminComment=ration " + used + "\n"
	const evil = "root,,slurm-7,,9,9,9,9,9,9,9,9,9\n"
	for name, c := range map[string]struct {
		csv, nodes, fails string
		wrote, logged     string
	}{
		"its line":                   {csv: head + own, wrote: wrote},
		"another user's job":         {csv: head + "evil,,slurm-7,,9,9,9,9,9,9,9,9,9\n" + own, wrote: wrote},
		"a line in a name":           {csv: head + "evil,,\"x\n" + evil + "\",,1,1,1,1,1,1,1,1,1\n" + own, wrote: wrote},
		"quotes in a name":           {csv: head + "evil,,\"\"\"\n" + evil + "\"\"\",,1,1,1,1,1,1,1,1,1\n" + own, wrote: wrote},
		"commas in a project":        {csv: head + "root,\"a,slurm-7\",x,,9,9,9,9,9,9,9,9,9\nroot,\",slurm-7\",x,,9,9,9,9,9,9,9,9\n" + own, wrote: wrote},
		"a name that begins like it": {csv: head + "root,,slurm-70,,9,9,9,9,9,9,9,9,9\n" + own, wrote: wrote},
		"no line":                    {csv: head, logged: "the accounts have nothing of slurm-7 (does ration agent run?)"},
		"no accounts":                {csv: "ration: there is no agent\n", logged: "the accounts have nothing of slurm-7"},
		"several nodes":              {csv: head + own, nodes: "2", logged: used + " (not in AdminComment: it had several nodes)"},
		"no database":                {csv: head + own, fails: "echo no slurmdbd; exit 1", wrote: wrote, logged: used + " (not in AdminComment: no slurmdbd)"},
		"a busy database":            {csv: head + own, fails: "[ -e again ] || { : >again; exit 1; }", wrote: wrote},
	} {
		t.Run(name, func(t *testing.T) {
			if out, err := exec.Command("id", "-un").Output(); err != nil || string(out) != "root\n" {
				c.csv = strings.ReplaceAll(c.csv, "root,", strings.TrimSpace(string(out))+",")
			}
			n := newSlurmNode(t)
			n.write("csv", c.csv)
			n.write("ration", "#!/bin/sh\n[ \"$*\" = 'report --by job --since 2026-01-31T15:04:05Z --csv' ] && cat "+n.path("csv")+"\n")
			n.write("sleep", "#!/bin/sh\n")
			n.write("sacctmgr", "#!/bin/sh\ncd "+n.folder+"\nprintf '%s\\n' \"$@\" >wrote\n"+c.fails+"\n")
			n.write("logger", "#!/bin/sh\necho \"$*\" >"+n.path("logged")+"\n")
			if c.nodes == "" {
				c.nodes = "1"
			}
			out, err := n.run("account", []string{"7", "slurm-7", "2026-01-31T15:04:05Z"}, "SLURM_JOB_NUM_NODES="+c.nodes)
			expect.Equal(t, n.read("wrote"), c.wrote, name, out, err)
			got := n.read("logged")
			expect.True(t, strings.Contains(got, c.logged) && (c.logged != "" || got == ""), "it logged", got, "want", c.logged)
		})
	}
}

// The accounts are read after the agent has written them twice since the job's end, however late that is.
func TestSlurmAccountWaits(t *testing.T) {
	n := newSlurmNode(t)
	n.write("usage.db", "")
	old := time.Now().Add(-time.Hour)
	expect.OK(t, os.Chtimes(n.path("usage.db"), old, old))
	// The agent writes at each third look, later than the clock of the file system has moved.
	n.write("sleep", "#!/bin/sh\ncd "+n.folder+"\necho look >>calls\n[ $(($(grep -c look calls) % 3)) != 0 ] || { /bin/sleep 0.05; : >usage.db; echo write >>calls; }\n")
	_, err := n.run("account", []string{"7", "slurm-7", "2026-01-31T15:04:05Z"}, "SLURM_JOB_NUM_NODES=1")
	expect.True(t, err != nil, "there are no accounts")
	expect.Equal(t, n.read("calls"), strings.Repeat("look\nlook\nlook\nwrite\n", 2)+"report --by job --since 2026-01-31T15:04:05Z --csv\n")
}

// The epilog accounts for a job since its prolog, if the settings say so, and does not wait for it.
func TestSlurmEpilogAccounts(t *testing.T) {
	for _, setting := range []string{"yes", "no"} {
		n := newSlurmNode(t)
		n.write("conf", n.read("conf")+"ADMIN_COMMENT="+setting+"\n")
		n.write("shards", "#!/bin/sh\necho 1 0 all\n")
		n.write("account", "#!/bin/sh\nread -r go <"+n.path("go")+"\necho \"$*\" >"+n.path("accounted")+"\n")
		expect.OK(t, syscall.Mkfifo(n.path("go"), 0o600))
		_, err := n.run("prolog", nil)
		expect.OK(t, err)
		made := time.Date(2026, 1, 31, 15, 4, 5, 0, time.UTC)
		expect.OK(t, os.Chtimes(n.path("state/7"), made, made))
		_, err = n.run("epilog", nil)
		expect.OK(t, err)
		expect.Equal(t, n.read("state/7"), "", "the epilog has ended its job")
		if setting == "no" {
			continue
		}
		expect.OK(t, os.WriteFile(n.path("go"), []byte("go\n"), 0)) // blocks until account reads it
		for end := time.Now().Add(time.Minute); n.read("accounted") == "" && time.Now().Before(end); {
			time.Sleep(10 * time.Millisecond)
		}
		expect.Equal(t, n.read("accounted"), "7 slurm-7 2026-01-31T15:04:05Z\n", "account was called with")
	}
}
