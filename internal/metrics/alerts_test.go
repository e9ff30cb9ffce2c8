package metrics

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"ration/check/alerts"
	"ration/internal/usage"
	"ration/machine"
)

// scene is what an agent exports at one time.
type scene struct {
	machine *machine.Machine
	agent   Agent
	totals  totals
	down    bool // Prometheus cannot reach it
}

// quiet returns a machine on which all is well.
func quiet() scene {
	up := true
	return scene{totals: totals{users: map[usage.Subject]usage.Sums{{UID: 1000, Owner: "lovelace"}: {Held: 100 * gib, Idle: 100 * gib}}}, agent: Agent{Events: map[string]uint64{}, PolicyUp: &up}, machine: &machine.Machine{
		Devices: []machine.GPU{{Device: 0, UUID: "GPU-a", Total: 100 * gib, Used: 10 * gib, Rations: 40 * gib, Jobs: 1}},
		Jobs: []machine.Job{{Name: "train", Owner: "lovelace", State: machine.Running, Created: time.Unix(0, 0), Path: "/a",
			Devices: []machine.Device{{Device: 0, UUID: "GPU-a", Limited: true, Limit: 40 * gib, Used: 10 * gib, Peak: 10 * gib}}}},
	}}
}

// troubles has what makes each alert fire.
var troubles = []struct {
	alert   string
	trouble func(s *scene)
}{
	{"RationDeviceOverbooked", func(s *scene) {
		s.found(machine.Overbooked)
		s.machine.Devices[0].Rations = 101 * gib
	}},
	{"RationMemoryOutsideJobs", func(s *scene) { s.machine.Outside = []machine.Outside{{Device: 0, PID: 7, Used: gib}} }},
	{"RationMemoryOutsideJobs", func(s *scene) { s.found(machine.OutsideJobs) }},
	{"RationOverLimit", func(s *scene) { s.device().Driver = 50 * gib }},
	{"RationDrift", func(s *scene) { s.found(machine.Drift) }},
	{"RationJobUnreadable", func(s *scene) { s.found(machine.Unreadable) }},
	{"RationUserNotAnswering", func(s *scene) { s.found(machine.Unanswering) }},
	{"RationGPUFailed", func(s *scene) { // its size may not be known, which must not read as overbooked
		s.found(machine.DeviceFailed)
		s.machine.Devices[0].Failed, s.machine.Devices[0].Total, s.machine.Devices[0].Used = true, 0, 0
	}},
	{"RationDriverSilent", func(s *scene) { s.found(machine.DriverSilent) }},
	{"RationUsersRefused", func(s *scene) { s.found(machine.PolicyRefused) }},
	{"RationShareNotEnforced", func(s *scene) { s.found(machine.ShareUnkept) }},
	{"RationJobRefused", func(s *scene) { s.device().Refused = 3 }},
	{"RationJobRefused", func(s *scene) { s.young().Devices[0].Refused = 1 }},
	{"RationJobNearLimit", func(s *scene) { s.device().Used = 39 * gib }},
	{"RationJobIdle", func(s *scene) {
		s.machine.Jobs[0].State, s.machine.Jobs[0].IdleSince = machine.Idle, time.Unix(-7200, 0)
	}},
	{"RationJobCannotWake", func(s *scene) {
		s.machine.Jobs[0].Sleep = machine.Asleep
		s.machine.Waiting = []machine.Waiting{{Path: "/a", Wakes: true, Since: time.Unix(0, int64(alerts.TroubleAt))}}
	}},
	{"RationUserIdle", func(s *scene) {
		s.totals.users = map[usage.Subject]usage.Sums{{UID: 1000, Owner: "lovelace"}: {Held: 1500 * gib * 3600, Idle: 1400 * gib * 3600}}
	}},
	{"RationProcessDied", func(s *scene) { s.machine.Jobs[0].Died = 2 }},
	{"RationProcessDied", func(s *scene) { s.young().Died = 1 }},
	{"RationJobsWithoutSeries", func(s *scene) {
		for i := range MaxJobs {
			s.machine.Jobs = append(s.machine.Jobs, machine.Job{Name: fmt.Sprint("small-", i), Owner: "eve", State: machine.Idle, Path: fmt.Sprint(i)})
		}
	}},
	{"RationAgentSlow", func(s *scene) { s.agent.ScanSeconds = 3 }},
	{"RationAgentStalled", func(s *scene) { s.agent.Scanned = int64(alerts.TroubleAt) }},
	{"RationAgentDown", func(s *scene) { s.down = true }},
	{"RationPolicyServiceDown", func(s *scene) { up := false; s.agent.PolicyUp = &up }},
}

func (s *scene) found(kind string) {
	s.machine.Findings = append(s.machine.Findings, machine.Finding{Kind: kind})
}

func (s *scene) device() *machine.Device { return &s.machine.Jobs[0].Devices[0] }

// young adds a job that Prometheus has not seen before the trouble.
func (s *scene) young() *machine.Job {
	s.machine.Jobs = append(s.machine.Jobs, machine.Job{Name: "young", Owner: "eve", State: machine.Running, Created: time.Unix(0, int64(alerts.TroubleAt)), Path: "/b",
		Devices: []machine.Device{{Device: 0, UUID: "GPU-a", Limited: true, Limit: gib}}})
	return &s.machine.Jobs[len(s.machine.Jobs)-1]
}

// samples returns what Prometheus scrapes, by series. As shipped, the agent exports its jobs.
func (s scene) samples(t *testing.T) map[string]float64 {
	t.Helper()
	const up = `up{instance="m:9410",job="ration"}`
	if s.down {
		return map[string]float64{up: 0}
	}
	text := written(t, MachineCollector(func() *machine.Machine { return s.machine }, Options{Version: "1", Jobs: true, Accounts: s.totals}), AgentCollector(func() Agent { return s.agent }))
	r := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return parse(t, text), nil })
	out := alerts.Scrape(t, r, "m:9410", "ration")
	out[up] = 1
	return out
}

// Every alert fires when what it is about happens, by what an agent exports as it is shipped, and none fires on a
// machine on which all is well.
func TestAlertsFire(t *testing.T) {
	const (
		lookTime      = `ration_agent_look_time_seconds{instance="m:9410",job="ration"}`
		before, after = int(alerts.TroubleAt / time.Minute), int((alerts.EndAt - alerts.TroubleAt) / time.Minute)
	)
	var cases []alerts.Case
	for _, a := range troubles {
		s, bad := quiet(), quiet()
		a.trouble(&bad)
		c := alerts.Case{Alert: a.alert, Before: s.samples(t), After: bad.samples(t)}
		if bad.agent.Scanned == 0 && !bad.down {
			c.Values = map[string]string{lookTime: fmt.Sprintf("0+60x%d", before+after)}
		} else {
			c.Values = map[string]string{lookTime: fmt.Sprintf("0+60x%d %s", before-1, alerts.Span(c.After, lookTime, after))}
		}
		cases = append(cases, c)
	}
	alerts.Fire(t, "../../deploy/prometheus/ration.rules.yaml", cases)
}
