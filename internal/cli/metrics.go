package cli

import (
	"bytes"

	"github.com/spf13/cobra"

	"ration/internal/agent"
	"ration/internal/metrics"
	"ration/internal/node"
)

func newMetricsCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "metrics",
		Short: "Print metrics for Prometheus, once",
		Long: `Print metrics of the machine and its jobs once, in the text format of
Prometheus: for the textfile collector of its node exporter, or to read them
yourself. As root, of the jobs of all users. For other users the sums of a
device count all users' jobs only while root's ration agent runs, otherwise
their own jobs. The agent serves the same metrics to Prometheus directly.

At most 256 running jobs have series of their own, selected in turn from all
users; one series has the sum of the others. docs/monitoring.md lists the
metrics. Nothing is changed.

Exit status: 0; 3 if the jobs could not be listed.`,
		Example: "  ration metrics > /var/lib/node_exporter/ration.prom.new &&\n    mv /var/lib/node_exporter/ration.prom.new /var/lib/node_exporter/ration.prom",
		Args:    noArgs,
		RunE:    func(*cobra.Command, []string) error { return a.runMetrics() },
	}
}

func (a *app) runMetrics() error {
	if a.json {
		return usageError("ration metrics prints the text that Prometheus reads (for JSON use ration ps --json)")
	}
	m, err := node.Read(node.Options{ReadOnly: true})
	if err != nil {
		return statusError{err, ExitOpen}
	}
	a.noteSilent(new(agent.Totals).Add(&m), "the sums of the devices count only your own jobs")
	var text bytes.Buffer
	if err := metrics.Write(&text, &m, metrics.Options{Version: version, Jobs: true}); err != nil {
		return err
	}
	out := a.out
	out.ascii = false // labels are UTF-8 in every locale
	_, err = out.Write(text.Bytes())
	return err
}
