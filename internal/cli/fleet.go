package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"ration/internal/fleet"
	"ration/internal/humanfmt"
)

// fleetWords explains how machines are named.
const fleetWords = `  HOST[:PORT]         a machine (port 9411 unless it says otherwise)
  @FILE               a file with one of these on each line. The machine's token
                      file may follow it, if it has a token of its own
  dns+NAME[:PORT]     every address of a DNS name. The machines share the
                      certificate of that name
  dnssrv+NAME         the machines of a DNS name's SRV records
`

func newFleetCommand(a *app) *cobra.Command {
	var token, ca string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "fleet MACHINES...",
		Short: "Show the GPUs of many machines, and who holds them",
		Long: `Ask many machines once, and show their GPUs, which users hold them, and their
findings: machines that do not answer first, then failed GPUs, then jobs over
their limits. On each machine ration web must run with --tls-cert and
--token-file. ration web --fleet shows the same in a browser, as it changes.
MACHINES is:

` + fleetWords + `
Exit status: 0 if all machines answered; 1 if one did not.`,
		Example: "  ration fleet @/etc/ration/fleet --fleet-token /etc/ration/fleet.token\n  ration fleet node1 node2 --fleet-token token --json",
		Args:    argCount(1, -1, "a machine"),
		RunE: func(_ *cobra.Command, args []string) error {
			if token == "" {
				return usageError("ration fleet: needs --fleet-token, the file with the token of these machines")
			}
			return a.runFleet(args, token, ca, timeout)
		},
	}
	addFleetFiles(cmd, &token, &ca)
	cmd.Flags().DurationVar(&timeout, "timeout", 10*time.Second, "how long to wait for the machines")
	return cmd
}

// addFleetFiles adds the flags for reading other machines.
func addFleetFiles(cmd *cobra.Command, token, ca *string) {
	cmd.Flags().StringVar(token, "fleet-token", "", "`file` with the token of the fleet's machines")
	cmd.Flags().StringVar(ca, "ca", "", "PEM `file` with the authorities of their certificates (default the system's)")
}

// startFleet follows machines until the context ends. done waits until that has ended.
func startFleet(ctx context.Context, machines []string, token, ca string) (all *fleet.Fleet, done func(), err error) {
	list, err := fleet.NewList(machines)
	if err != nil {
		return nil, nil, usageError("the machines of the fleet: %v", err)
	}
	if _, err := fleet.ReadToken(token); err != nil {
		return nil, nil, err
	}
	if all, err = fleet.New(fleet.Options{List: list, Token: token, CA: ca}); err != nil {
		return nil, nil, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		all.Run(ctx)
	}()
	select {
	case <-all.Listed():
	case <-ctx.Done():
	}
	return all, func() { <-ended }, nil
}

func (a *app) runFleet(machines []string, token, ca string, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	all, done, err := startFleet(ctx, machines, token, ca)
	if err != nil {
		return err
	}
	state := answered(ctx, all)
	cancel()
	done()
	err = a.print(*state, func() { printTable(a.out, fleetColumns, state.ByUrgency()) })
	if err != nil {
		return err
	}
	var problems []error
	for _, note := range state.Notes {
		problems = append(problems, errors.New(note))
	}
	silent := 0
	for _, m := range state.Machines {
		if m.State != fleet.Up {
			silent++
		}
	}
	if silent > 0 {
		problems = append(problems, fmt.Errorf("%d of %s did not answer", silent, humanfmt.Plural(len(state.Machines), "machine", "machines")))
	}
	return errors.Join(problems...)
}

// answered waits until each machine has answered or failed, or the context ends.
func answered(ctx context.Context, all *fleet.Fleet) *fleet.State {
	for {
		state, next := all.Latest()
		waits := false
		for _, m := range state.Machines {
			waits = waits || m.State == fleet.Connecting
		}
		if !waits {
			return state
		}
		select {
		case <-next:
		case <-ctx.Done():
			return state
		}
	}
}

var fleetColumns = []column[*fleet.Machine]{
	{"MACHINE", false, func(m *fleet.Machine) string { return m.Name }, nil},
	{"STATE", false, func(m *fleet.Machine) string { return m.State }, nil},
	{"GPUS", true, func(m *fleet.Machine) string { return fmt.Sprint(len(m.GPUs)) }, nil},
	{"USED", true, func(m *fleet.Machine) string {
		return humanfmt.Short(sumOf(m, func(g *fleet.GPU) uint64 { return g.Used }))
	}, nil},
	{"OF", true, func(m *fleet.Machine) string {
		return humanfmt.Short(sumOf(m, func(g *fleet.GPU) uint64 { return g.Total }))
	}, nil},
	{"USERS", false, func(m *fleet.Machine) string {
		var names []string
		for _, u := range m.Users {
			names = append(names, u.Name)
		}
		return strings.Join(names, ",")
	}, nil},
	{"FINDINGS", false, func(m *fleet.Machine) string {
		if m.State == fleet.Unreachable {
			return m.Reason
		}
		var texts []string
		for _, p := range m.Problems {
			texts = append(texts, p.Text)
		}
		return strings.Join(texts, "; ")
	}, func(m *fleet.Machine) bool { return fleet.Urgency(m) > 0 }},
}

func sumOf(m *fleet.Machine, of func(g *fleet.GPU) uint64) (sum uint64) {
	for i := range m.GPUs {
		sum += of(&m.GPUs[i])
	}
	return sum
}
