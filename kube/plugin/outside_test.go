package plugin

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ration/check/expect"
	"ration/machine"
)

// A process of a claim's pod that uses a GPU and is in no job becomes one event of the pod; a process of another pod, and one
// that has ended before the second check, do not.
func TestOutside(t *testing.T) {
	for _, period := range []time.Duration{0, time.Hour} { // without events and with them
		t.Run(period.String(), func(t *testing.T) { testOutside(t, period) })
	}
}

func testOutside(t *testing.T, period time.Duration) {
	c := newCluster(t)
	c.config.EventsPeriod = period
	c.start()
	claim := newClaim(c, 1, "1Gi")
	podUID := "22222222-0000-4000-8000-000000000001"
	claim.Status.ReservedFor[0].UID = "22222222-0000-4000-8000-000000000001"
	c.add(claim)
	expect.Equal(t, c.prepare(claim)[string(claim.UID)].Error, "")
	groups := map[int]string{}
	in := func(group string) int {
		cmd := exec.Command("sleep", "600")
		expect.OK(t, cmd.Start())
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		groups[cmd.Process.Pid] = group
		return cmd.Process.Pid
	}
	c.plugin.cgroup = func(pid int) string { return groups[pid] }
	inside := in("/kubepods.slice/kubepods-pod" + strings.ReplaceAll(podUID, "-", "_") + ".slice/cri-containerd-0.scope")
	foreign := in("/kubepods/besteffort/pod33333333-0000-4000-8000-000000000001/0")
	users := map[int]uint64{inside: 3 << 30, foreign: 1 << 30}
	gpu := c.config.Node.GPUs[1].UUID
	c.plugin.Users = func([]string) (map[string]map[int]uint64, error) { return map[string]map[int]uint64{gpu: users}, nil }
	events := func() (out []corev1.Event) {
		list, err := c.client.CoreV1().Events("ns").List(t.Context(), metav1.ListOptions{})
		expect.OK(t, err)
		return list.Items
	}
	seen, err := c.plugin.checkOutside(t.Context(), outsiders{}, time.Now())
	expect.OK(t, err)
	expect.Equal(t, len(events()), 0, "it was reported at the first sight")
	for range 2 {
		seen, err = c.plugin.checkOutside(t.Context(), seen, time.Now())
		expect.OK(t, err)
	}
	if got := events(); period == 0 {
		expect.Equal(t, len(got), 0, "events, although they are off")
	} else {
		expect.Must(t, len(got) == 1, len(got), "events")
		expect.True(t, got[0].Reason == ReasonOutside && string(got[0].InvolvedObject.UID) == podUID && strings.Contains(got[0].Message, "holds 3072 MiB"), got[0])
	}
	_, outside, _ := c.plugin.gpus.get()
	expect.True(t, len(outside) == 1 && outside[gpu] == outsideUse{1, 3 << 30}, outside)

	// While the driver does not list the processes of this GPU, it keeps what was found, and those of the other are checked.
	other := c.config.Node.GPUs[0].UUID
	all, broken := c.plugin.Users, errors.New("the GPU does not answer")
	c.plugin.Users = func([]string) (map[string]map[int]uint64, error) {
		return map[string]map[int]uint64{other: {inside: 1 << 30}}, broken
	}
	for range 2 {
		seen, err = c.plugin.checkOutside(t.Context(), seen, time.Now())
		expect.True(t, errors.Is(err, broken), err)
	}
	_, outside, _ = c.plugin.gpus.get()
	expect.True(t, outside[gpu] == outsideUse{1, 3 << 30} && outside[other] == outsideUse{1, 1 << 30}, outside)
	// One that was found on it before is no new one when its processes are listed again.
	reported := len(events())
	c.plugin.Users = func([]string) (map[string]map[int]uint64, error) {
		return map[string]map[int]uint64{other: {}}, broken
	}
	seen, err = c.plugin.checkOutside(t.Context(), seen, time.Now())
	expect.True(t, errors.Is(err, broken), err)
	c.plugin.Users = all
	seen, err = c.plugin.checkOutside(t.Context(), seen, time.Now())
	expect.OK(t, err)
	_, outside, _ = c.plugin.gpus.get()
	expect.True(t, outside[gpu] == outsideUse{1, 3 << 30} && len(events()) == reported, outside, len(events()), reported)
	delete(users, inside)
	seen, err = c.plugin.checkOutside(t.Context(), seen, time.Now())
	expect.True(t, err == nil && len(seen) == 0, seen, err)
	_, outside, _ = c.plugin.gpus.get()
	expect.Equal(t, outside[gpu], outsideUse{})
}

// The check runs without events, too. Of a GPU whose processes are not known there is no metric.
func TestOutsideWithoutEvents(t *testing.T) {
	c := newCluster(t)
	gpus := c.config.Node.GPUs
	c.config.Users = func([]string) (map[string]map[int]uint64, error) {
		return map[string]map[int]uint64{gpus[0].UUID: {}}, nil
	}
	c.start()
	until(t, "the check", func() bool { return strings.Contains(c.metrics(), `outside_processes{uuid="`+gpus[0].UUID+`"} 0`) })
	expect.True(t, !strings.Contains(c.metrics(), `outside_processes{uuid="`+gpus[1].UUID), c.metrics())
}

// A process of a claim's pod that is in the claim's job is not outside, whatever the driver says that it holds.
func TestInsideIsNotReported(t *testing.T) {
	c := newCluster(t)
	c.config.EventsPeriod = time.Hour
	c.start()
	own := newClaim(c, 1, "10Gi")
	own.Status.ReservedFor[0].UID = "22222222-0000-4000-8000-000000000001"
	c.add(own)
	expect.Equal(t, c.prepare(own)[string(own.UID)].Error, "")
	cmd := train(t, own, "--hold", "1g")
	expect.OK(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	until(t, "the process to be in the job", func() bool {
		j, err := machine.ReadJob("k8s-" + string(own.UID))
		return err == nil && len(j.Processes) == 1 && j.Processes[0].HostPID == cmd.Process.Pid
	})
	c.plugin.cgroup = func(int) string { return "/kubepods/pod22222222-0000-4000-8000-000000000001/0" }
	gpu := c.config.Node.GPUs[0].UUID
	c.plugin.Users = func([]string) (map[string]map[int]uint64, error) {
		return map[string]map[int]uint64{gpu: {cmd.Process.Pid: 3 << 30}}, nil
	}
	seen := outsiders{}
	for range 3 {
		var err error
		seen, err = c.plugin.checkOutside(t.Context(), seen, time.Now())
		expect.True(t, err == nil && len(seen) == 0, seen, err)
	}
	list, err := c.client.CoreV1().Events("ns").List(t.Context(), metav1.ListOptions{})
	expect.True(t, err == nil && len(list.Items) == 0, list.Items, err)
	_, outside, _ := c.plugin.gpus.get()
	expect.Equal(t, outside[gpu], outsideUse{})
}
