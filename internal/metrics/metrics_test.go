package metrics

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"ration/check/expect"
	"ration/internal/proc"
	"ration/machine"
)

var update = flag.Bool("update", false, "write testdata/scrape.txt anew")

const gib = 1 << 30

// example is a machine with something of everything.
func example() *machine.Machine {
	celsius, watts, busy := 61, 312.5, 87
	return &machine.Machine{
		Hidden:  3,
		Waiting: []machine.Waiting{{Job: "notebook", Path: "/tmp/ration-1/notebook/region", Since: time.Unix(0, 1.7e18), Wakes: true}, {Job: "train", Path: "/tmp/ration-1/train/region", Since: time.Unix(1, 0)}},
		Devices: []machine.GPU{
			{Device: 0, UUID: "GPU-a", Name: "NVIDIA \"H200\"\\", Total: 141 * gib, Used: 90 * gib, Rations: 150 * gib, Jobs: 2, Unlimited: 1, Temperature: &celsius, Power: &watts, Utilization: &busy},
			{Device: 1, UUID: "GPU-b", Name: "NVIDIA H200", MIG: true, Total: 141 * gib},
		},
		Outside:  []machine.Outside{{Device: 0, PID: 5, Used: gib}, {Device: 0, PID: 6, Used: 2 * gib}, {Device: 0, PID: 7, Used: 5 * gib, Exempt: true}},
		Findings: []machine.Finding{{Kind: machine.Overbooked}, {Kind: machine.OutsideJobs}, {Kind: machine.OutsideJobs}, {Kind: machine.Unanswering}},
		Jobs: []machine.Job{
			{Name: "train", Owner: "lovelace", State: machine.Running, Created: time.Unix(0, 1.5e18), Died: 2, Path: "/run/user/1/ration/train/region",
				Devices: []machine.Device{{Device: 0, UUID: "GPU-b", Limited: true, Limit: 100 * gib, Used: 60 * gib, Peak: 80 * gib, Refused: 7,
					Compute: &machine.Compute{Share: 30, Max: 50, Used: 2.5e9, Waited: 0.5e9}}, {Device: 1, UUID: "GPU-a", Used: gib, Peak: gib}},
				Processes: []machine.Process{{State: machine.Live}, {State: machine.Stopped}, {State: machine.Dead}}},
			// Of the same name, in another folder: one series.
			{Name: "train", Owner: "lovelace", State: machine.Idle, Created: time.Unix(0, 1.6e18), Died: 1, Path: "/tmp/ration-1/train/region",
				Devices: []machine.Device{{Device: 1, Limited: true, Limit: gib, Peak: gib}}},
			{Name: "notebook", Owner: "lovelace", State: machine.Running, Sleep: machine.Asleep, Created: time.Unix(0, 1.62e18), Path: "/tmp/ration-1/notebook/region",
				Devices: []machine.Device{{Device: 0, UUID: "GPU-a", Limited: true, Limit: 20 * gib, Aside: 12 * gib, Peak: 16 * gib}}},
			{Name: "notebook-2", Owner: "lovelace", State: machine.Running, CannotSleep: "it shares memory", Created: time.Unix(0, 1.63e18), Path: "/tmp/ration-1/notebook-2/region"},
			{Name: "k8s-1", Owner: "root", State: machine.Idle, Created: time.Unix(0, 1.65e18), Path: "/run/ration/k8s-1/region",
				Kubernetes: &machine.Kubernetes{Namespace: "team", Claim: "train-gpu", Pods: []machine.Pod{{Name: "train-0"}}}},
			{Name: "k8s-2", Owner: "root", State: machine.Idle, Created: time.Unix(0, 1.66e18), Path: "/run/ration/k8s-2/region",
				Kubernetes: &machine.Kubernetes{Namespace: "team", Claim: "shared", Pods: []machine.Pod{{Name: "a"}, {Name: "b"}}}},
			{Path: "/data/\xff\x1b[2J\n\"region\"", Owner: "eve", State: machine.Starting, Created: time.Unix(0, 1.7e18)},
			{Name: "old", Owner: "lovelace", State: machine.Ended, Created: time.Unix(0, 1), Devices: []machine.Device{{Used: gib}}},
		},
	}
}

func scrape(t *testing.T, m *machine.Machine, opts Options) string {
	t.Helper()
	var out bytes.Buffer
	expect.OK(t, Write(&out, m, opts))
	return out.String()
}

// The scrape is what it was. Its names and units are as Prometheus would have them.
func TestGoldenScrape(t *testing.T) {
	got := scrape(t, example(), Options{Version: "1.2.3", Jobs: true, Accounts: exampleAccounts()})
	const path = "testdata/scrape.txt"
	if *update {
		expect.OK(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	expect.OK(t, err)
	expect.Equal(t, got, string(want), "the scrape changed (if that is meant: go test ./internal/metrics -update, and CHANGELOG.md)")
	problems, err := promlint.New(strings.NewReader(got)).Lint()
	expect.True(t, err == nil && len(problems) <= 0, problems, err)
	for _, f := range parse(t, got) {
		expect.True(t, slices.Contains(names, f.GetName()), f.GetName(), "is not in names")
	}
}

// What the agent says of itself is as Prometheus would have it, too.
func TestAgentMetrics(t *testing.T) {
	got := written(t, AgentCollector(func() Agent {
		return Agent{Events: map[string]uint64{"start": 2, "death": 1}, Scans: 3, ScanSeconds: 0.25, Scanned: 1e18}
	}))
	problems, err := promlint.New(strings.NewReader(got)).Lint()
	expect.True(t, err == nil && len(problems) <= 0, problems, err)
	expect.True(t, strings.Contains(got, `# HELP ration_agent_events_total Events that the agent has seen since it started, by kind.
# TYPE ration_agent_events_total counter
ration_agent_events_total{kind="death"} 1
ration_agent_events_total{kind="start"} 2
`), got)
}

// Without series of jobs no name, user or path of a job is in the scrape.
func TestMachineOnly(t *testing.T) {
	got := scrape(t, example(), Options{Version: "1.2.3"})
	for _, secret := range []string{"lovelace", "eve", "train", "data", "job_name", "user="} {
		expect.True(t, !strings.Contains(got, secret), secret, "is in", got)
	}
	expect.True(t, strings.Contains(got, `ration_jobs{state="ended"} 4`) && strings.Contains(got, `ration_device_memory_outside_bytes{device="0"} 3.221225472e+09`),
		"got", got)
}

// Processes that a look at the machine has left out are counted, unless they are dead.
func TestOmittedProcesses(t *testing.T) {
	m := &machine.Machine{Jobs: []machine.Job{{Name: "big", Owner: "eve", State: machine.Running, Path: "/e/big",
		Processes: []machine.Process{{State: machine.Live}, {State: machine.Dead}}, Omitted: &machine.Omitted{Processes: 100, Dead: 7}}}}
	got := scrape(t, m, Options{Jobs: true})
	expect.True(t, strings.Contains(got, `ration_job_processes{job_name="big",user="eve"} 94`), got)
}

// However many jobs there are, and whatever they are called, the number of series is bounded,
// and a user with many takes them from no other.
func TestBoundedSeries(t *testing.T) {
	m := &machine.Machine{}
	for i := range 4000 {
		m.Jobs = append(m.Jobs, machine.Job{Name: fmt.Sprint("flood-", i), Owner: "eve", State: machine.Running, Created: time.Unix(0, int64(i)), Path: fmt.Sprint("/e/", i),
			Devices: []machine.Device{{Device: 0, Used: 10, Limited: true, Limit: 20, Refused: 1}}, Processes: []machine.Process{{State: machine.Live}}})
	}
	for i := range 3 {
		m.Jobs = append(m.Jobs, machine.Job{Name: fmt.Sprint("late-", i), Owner: "lovelace", State: machine.Idle, Created: time.Unix(0, int64(1e6+i)), Path: fmt.Sprint("/a/", i)})
	}
	own, others := group(m)
	expect.Must(t, len(own) == MaxJobs+1 && others == 4003-MaxJobs, len(own), "series", others, "others")
	for i := range 3 {
		expect.True(t, slices.ContainsFunc(own, func(s series) bool { return s.name == fmt.Sprint("late-", i) && s.user == "lovelace" }),
			"late-", i, "has no series")
	}
	rest := own[MaxJobs]
	expect.True(t, rest.others && rest.devices[0].used == uint64(10*others) && rest.devices[0].limit == uint64(20*others) && rest.processes == others,
		rest)
	text := scrape(t, m, Options{Jobs: true})
	for _, metric := range []string{"refusals_total", "deaths_total", "peak_bytes"} { // sums of these would fall when a job ends
		expect.True(t, !strings.Contains(text, "ration_job_"+metric+`{device="0",job_name="(others)"`) && !strings.Contains(text, "ration_job_"+metric+`{job_name="(others)"`),
			metric, "of the others is shown")
	}
	// A job that had series keeps them when others come.
	more := *m
	more.Jobs = append(slices.Clone(m.Jobs), machine.Job{Name: "new", Owner: "eve", State: machine.Running, Created: time.Unix(0, 2e6), Path: "/e/new"})
	after, _ := group(&more)
	for i := range own {
		expect.Must(t, own[i].name == after[i].name, "series", i, "was", own[i].name, "and is", after[i].name)
	}
}

// The jobs without series are the smallest of the user with most jobs, and are counted.
func TestLargestHaveSeries(t *testing.T) {
	m := &machine.Machine{}
	for i := range MaxJobs + 10 {
		m.Jobs = append(m.Jobs, machine.Job{Name: fmt.Sprint("eve-", i), Owner: "eve", State: machine.Running, Created: time.Unix(0, int64(i)), Path: fmt.Sprint("/e/", i),
			Devices: []machine.Device{{Device: 0, Peak: uint64(i)}, {Device: 1, Peak: gib}}})
	}
	m.Jobs = append(m.Jobs, machine.Job{Name: "tiny", Owner: "lovelace", State: machine.Running, Path: "/a"})
	own, others := group(m)
	expect.Equal(t, others, 11)
	has := func(name string) bool {
		return slices.ContainsFunc(own, func(s series) bool { return s.name == name })
	}
	expect.True(t, has("tiny") && has(fmt.Sprint("eve-", MaxJobs+9)) && has("eve-11") && !has("eve-10"), "other jobs have series")
	expect.True(t, strings.Contains(scrape(t, m, Options{Jobs: true}), "\nration_jobs_without_series 11\n"), "they are not counted")
}

// What a tenant chose is a valid label, and a short one.
func FuzzLabel(f *testing.F) {
	f.Add("train")
	f.Add(strings.Repeat("ä", MaxLabel))
	f.Add("\xff\x00\u202e\n\"\\")
	f.Fuzz(func(t *testing.T, text string) {
		got := label(text)
		expect.True(t, len(got) <= MaxLabel && utf8.ValidString(got) && !strings.ContainsAny(got, "\n\x00\u202e"), got)
		read := parse(t, written(t, func(e emitter) { e.counter(jobDeaths, 1, got, "x") }))
		expect.Equal(t, labelsOf(read[0].Metric[0])["user"], got)
	})
}

// Jobs of thousands of UIDs that are lent to one user, and that say they are older than all others, take
// the series from no other user.
func TestSeriesOfLentUsers(t *testing.T) {
	const firstLent = 100000
	accountOf = func(uid int) int {
		if uid >= firstLent {
			return -2
		}
		return uid
	}
	defer func() { accountOf = proc.Account }()
	m := &machine.Machine{}
	for i := range 2 * MaxJobs {
		m.Jobs = append(m.Jobs, machine.Job{Name: "a", UID: firstLent + i, Owner: fmt.Sprint(firstLent + i), State: machine.Running, Path: fmt.Sprint("/e/", i)})
	}
	m.Jobs = append(m.Jobs, machine.Job{Name: "train", UID: 8, Owner: "lovelace", State: machine.Running, Created: time.Unix(0, 1e6), Path: "/a"})
	own, _ := group(m)
	expect.True(t, slices.ContainsFunc(own, func(s series) bool { return s.user == "lovelace" }), "another user's job has no series")
}
