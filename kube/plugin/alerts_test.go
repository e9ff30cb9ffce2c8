package plugin

import (
	"testing"
	"time"

	"ration/check/alerts"
	"ration/kube/slices"
)

// Each alert about the plugin fires when what it is about happens, by what the plugin exports.
func TestAlertsFire(t *testing.T) {
	c := newCluster(t)
	gpu := c.config.Node.GPUs[0].UUID
	c.config.Users = func([]string) (map[string]map[int]uint64, error) { return nil, nil }
	c.config.MaxMemory = 2 << 30
	c.located()
	c.start()
	scrape := func() map[string]float64 {
		return alerts.Scrape(t, c.plugin.registry(), "node:8080", "ration-kubelet-plugin")
	}
	quiet := scrape()
	var cases []alerts.Case
	fires := func(alert string) {
		cases = append(cases, alerts.Case{Alert: alert, Before: quiet, After: scrape()})
	}
	c.plugin.gpus.setOutside(map[string]outsideUse{gpu: {2, 3 << 30}})
	fires("RationPluginOutsideProcesses")
	c.plugin.gpus.setOutside(nil)
	claim := newClaim(c, 1, "3Gi")
	c.add(claim)
	for range 5 { // as the kubelet tries
		c.prepare(claim)
	}
	fires("RationPluginPrepareFails")
	gpus := c.config.Node.GPUs
	c.plugin.gpus.addFault(gpus, slices.Fault{PCI: gpus[0].Location.PCI, Why: "Xid 79", At: time.Now()}, time.Now())
	fires("RationPluginGPUUnhealthy")
	alerts.Fire(t, "../../deploy/prometheus/ration-kubernetes.rules.yaml", cases)
}
