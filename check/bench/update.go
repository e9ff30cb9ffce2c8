package bench

import (
	"fmt"
)

// opsPerRound is how many operations are timed together: about a millisecond, so that a preemption
// affects one of many rounds and not the median.
const opsPerRound = 20_000

// largeLimit is a limit that is never reached, in bytes.
const largeLimit = 1 << 40

// update measures one charge.
func update(env Env) (Result, error) {
	var result Result
	err := withPair(largeLimit, func(p pair) error {
		for _, part := range []func(Env, pair) ([]Row, error){alone, neighbours, threads, manySlots, manyCharges} {
			rows, err := part(env, p)
			if err != nil {
				return err
			}
			result.Rows = append(result.Rows, rows...)
		}
		return nil
	})
	result.Notes = []string{
		"C is the library's region, which CUDA programs run; Go is ration's own. Both are compared with the bare atomic operation in C of the same run.",
		"A plain sequence lock has one writer, four fields and one copy, and no limit: it decides nothing.",
		"Only the charges are timed; they are returned all at once afterwards.",
		"Spread: 10th to 90th percentile over rounds. Threads share one slot; their time is wall time divided by the charges of all threads.",
	}
	return result, err
}

func alone(env Env, p pair) ([]Row, error) {
	env.Say("a charge alone")
	rounds := env.pick(61, 3)
	bare, charges, err := p.compare(rounds, "charge", orderOf("charge"), orderOf("add"))
	if err != nil {
		return nil, err
	}
	charges[0] = charges[0].withTarget(charges[0].Ratio, 4, "≤ 4 ×")
	_, returns, err := p.compare(rounds, "return", orderOf("return"), orderOf("add"))
	if err != nil {
		return nil, err
	}
	bare.Name = "bare atomic add"
	rows := append(append([]Row{bare}, charges...), returns...)
	for _, b := range []struct{ name, order string }{{"its usage alone", "publish"}, {"a plain sequence lock", "plain"}} {
		samples, err := alternate(rounds, p.ask(inC, orderOf("add")), p.ask(inC, orderOf(b.order)))
		if err != nil {
			return nil, err
		}
		bare := Samples(samples[0]).row("", Nanoseconds)
		rows = append(rows, Samples(samples[1]).row(b.name, Nanoseconds).in(inC).relativeTo(bare).throughput())
	}
	return rows, nil
}

func orderOf(name string) string { return fmt.Sprintf("%s %d", name, opsPerRound) }

// neighbours measures a charge that finds another slot's change in the ledger word, and must note
// that change first.
func neighbours(env Env, p pair) ([]Row, error) {
	env.Say("two slots taking turns")
	if err := p.both("slots 2"); err != nil {
		return nil, err
	}
	_, rows, err := p.compare(env.pick(61, 3), "charge after another's", orderOf("turns"), orderOf("add"))
	if err != nil {
		return nil, err
	}
	return rows, p.both("slots 1")
}

// threads measures several threads of one process in one slot, compared with as many threads that
// add to one word.
func threads(env Env, p pair) (all []Row, err error) {
	for _, n := range []int{2, 4, 8} {
		env.Say(fmt.Sprintf("%d threads in one slot", n))
		_, rows, err := p.compare(env.pick(21, 2), fmt.Sprintf("charge by %d threads", n),
			fmt.Sprintf("charge %d %d", opsPerRound, n), fmt.Sprintf("add %d %d", opsPerRound, n))
		if err != nil {
			return nil, err
		}
		all = append(all, rows...)
	}
	return all, nil
}

// manySlots measures a charge with 8 and with 1000 slots in use.
func manySlots(env Env, p pair) ([]Row, error) {
	return grows(env, p, "slots", 8, 1000, 1, "charge, %d slots", "≤ 1.5 × 8")
}

// manyCharges measures a charge after 10 and after 100 000 that were not returned.
func manyCharges(env Env, p pair) ([]Row, error) {
	return grows(env, p, "live", 10, 100_000, 0, "charge, %d live", "≤ 1.5 × 10")
}

// grows measures a charge with few and with many of something, which the order sets. It must not
// take longer with many.
func grows(env Env, p pair, order string, few, many, none int, name, target string) (all []Row, err error) {
	for _, n := range []int{few, many} {
		env.Say(fmt.Sprintf(name, n))
		if err := p.both("%s %d", order, n); err != nil {
			return nil, err
		}
		_, rows, err := p.compare(env.pick(41, 3), fmt.Sprintf(name, n), orderOf("charge"), orderOf("add"))
		if err != nil {
			return nil, err
		}
		all = append(all, rows...)
	}
	all[2] = all[2].withTarget(all[2].Value, 1.5*all[0].Value, target)
	return all, p.both("%s %d", order, none)
}
