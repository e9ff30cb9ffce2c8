package agent

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"ration/check/expect"
	"ration/internal/abi"
	"ration/internal/job"
	"ration/internal/node"
	"ration/internal/region"
	"ration/machine"
)

// Agents are killed while processes of jobs join, take memory and are killed. In the end each
// job holds what its living processes hold, no death is counted twice, and the last agent knows
// each that was written down, once. An agent that is killed between freeing a slot and writing
// down whose it was loses that one (docs/protocols.md, *The rings*), and reaps one at a time.
func TestKilledUnderLoad(t *testing.T) {
	testFolder(t)
	if *kills > 12 {
		t.Logf("%d kills", *kills)
	}
	const jobs, perRound = 3, 2
	names := []string{"one", "two", "three"}
	living, killed := map[string][]*child{}, map[string]int{}
	for _, name := range names {
		living[name] = append(living[name], holder(t, name))
	}
	for round := range *kills {
		agent := start(t, envAgent+"=1")
		ended := make(chan struct{})
		go func() { // beside what the processes do, at no particular moment
			defer close(ended)
			for range round % 5 {
				if c, err := Find(); err == nil {
					_, _ = c.Machine()
				}
			}
			_ = agent.Process.Kill()
		}()
		name := names[round%jobs]
		for range perRound {
			living[name] = append(living[name], holder(t, name))
		}
		for range perRound {
			living[name][0].kill()
			living[name] = living[name][1:]
			killed[name]++
		}
		<-ended
		agent.kill()
	}
	last := startAgent(t, Options{Reap: inProcess})
	recorded, lost := 0, 0
	for _, name := range names {
		path := filepath.Join(job.Folder(), name, job.RegionName)
		expect.OK(t, inProcess(context.Background(), []string{path}, os.Geteuid()))
		j := node.ReadJob(job.Job{Name: name, Path: path}, node.Options{})
		used := uint64(0)
		if len(j.Devices) > 0 {
			used = j.Devices[0].Used
		}
		want := uint64(len(living[name])) << 20
		expect.True(t, j.Err() == nil && used == want && int(j.Died) <= killed[name] && len(j.Processes) == len(living[name]),
			"job", name, j.Err(), used, "used of", want, j.Died, "died of", killed[name], len(j.Processes), "processes of", len(living[name]))
		expect.Equal(t, region.Locked(path), (len(living[name]) > 0), "job", name, "an agent has left a lock")
		recorded += len(j.Deaths)
		lost += min(killed[name], abi.Deaths) - len(j.Deaths)
	}
	expect.True(t, lost >= 0 && lost <= *kills, lost, "deaths were not written down, and", *kills, "agents were killed")
	last.Wake()
	deaths := last.await(t, machine.ProcessDied, recorded)
	once := map[machine.EventID]int{}
	for i := range deaths {
		once[deaths[i].ID()]++
	}
	expect.True(t, len(once) == recorded && len(deaths) == recorded, len(deaths), "deaths", len(once), "of them different, want", recorded)
}
