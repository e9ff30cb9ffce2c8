package tui

import (
	"cmp"
	"fmt"
	"time"

	tea "charm.land/bubbletea/v2"

	"ration/internal/humanfmt"
	"ration/internal/termtext"
	"ration/internal/usage"
)

// UsageReader returns a report with a plot of the accounts that the user may see, of the time until now.
type UsageReader func(span time.Duration) (usage.Report, error)

// usageAge is how old the shown accounts may be.
const usageAge = time.Minute

// The times that the page of usage shows.
const (
	aDay  = 24 * time.Hour
	aWeek = 7 * aDay
)

// usagePage shows who used the GPUs in a day or a week, from the agent's accounts.
type usagePage struct {
	span   time.Duration
	scroll scroller

	asked  time.Time // when the accounts were last asked for
	report *usage.Report
	err    error
}

// usageRead is the answer of a UsageReader.
type usageRead struct {
	span   time.Duration
	report usage.Report
	err    error
}

// openUsage opens the page.
func (m *Model) openUsage() tea.Cmd {
	p := &usagePage{span: aDay}
	m.page = p
	return p.ask(m)
}

// ask asks for the accounts, in a goroutine.
func (p *usagePage) ask(m *Model) tea.Cmd {
	if m.usage == nil {
		return nil
	}
	p.asked = m.sample.Time
	read, span := m.usage, p.span
	return func() tea.Msg {
		r, err := read(span)
		return usageRead{span, r, err}
	}
}

// refreshUsage asks again when the accounts on the screen are old.
func (m *Model) refreshUsage() tea.Cmd {
	if p, is := m.page.(*usagePage); is && m.sample.Time.Sub(p.asked) >= usageAge {
		return p.ask(m)
	}
	return nil
}

// setUsage shows an answer, unless the user has gone on.
func (m *Model) setUsage(got usageRead) {
	if p, is := m.page.(*usagePage); is && p.span == got.span {
		p.report, p.err = &got.report, got.err
	}
}

func (p *usagePage) press(m *Model, key string) tea.Cmd {
	span := p.span
	switch {
	case key == "d":
		span = aDay
	case key == "w":
		span = aWeek
	case key == "left", key == "right", key == "tab":
		span = aDay + aWeek - span
	case key == "up":
		p.scroll--
	case key == "down":
		p.scroll++
	case key == "esc", key == "q":
		m.back()
	case !p.scroll.press(m, key):
		return m.pressShared(key, "space ? h f1 m")
	}
	if span == p.span {
		return nil
	}
	p.span, p.report, p.err, p.scroll = span, nil, nil, 0
	return p.ask(m)
}

func (p *usagePage) choose(*Model, string) {}

func (p *usagePage) hints(m *Model) []hint {
	return []hint{{"d", "day"}, {"w", "week"}, {m.theme.arrows, "more"}, {"Esc", "back"}}
}

func (p *usagePage) body(m *Model, height int) []line {
	name := map[time.Duration]string{aDay: "the last day", aWeek: "the last week"}[p.span]
	head := []line{m.rule("who used the GPUs, " + name)}
	say := func(text string) []line { return append(head, m.paragraph(text, 2)...) }
	switch {
	case m.usage == nil:
		return say("no accounts are read here (use ration report)")
	case p.err != nil:
		return say(p.err.Error())
	case p.report == nil:
		return say("reading the accounts" + m.theme.ellipsis)
	case p.report.Plot == nil || len(p.report.Plot.All) == 0:
		return say("the agent that runs knows no plots: it is older than this program (restart it)")
	}
	lines := append(head, m.usagePlots(p.report)...)
	rest := m.usageTable(p.report)
	if height -= len(lines); height < 2 {
		return append(lines, rest...)
	}
	return append(lines, p.scroll.shown(rest, height)...)
}

// usageLabel is the width of the column of names.
const usageLabel = 14

// usagePlots draws all users' use over time.
func (m *Model) usagePlots(r *usage.Report) (lines []line) {
	gpus := func(v float64) string { return humanfmt.Three(v) + " GPUs" }
	memory := func(v float64) string { return humanfmt.Bytes(uint64(v)) }
	const right = 16
	width := max(8, m.width-usageLabel-right)
	for _, of := range []struct {
		name string
		text func(float64) string
		get  func(usage.Point) float64
	}{{"GPUs in use", gpus, seconds}, {"memory held", memory, held}, {"held but idle", memory, idle}} {
		values, most := usageCells(r.Plot, r.Plot.All, of.get, width)
		lines = append(lines, line{text: termtext.PadRight(of.name, usageLabel) + m.sparkline(scaled(values, most)) + m.theme.faint.Render(" "+m.theme.atMostText(of.text(most)))})
	}
	first := r.Plot.From.In(m.zone).Format("Mon 15:04")
	return append(lines, line{text: m.theme.faint.Render(termtext.PadRight("", usageLabel) + first + termtext.PadLeft(" now", max(1, width-len(first))))}, line{})
}

// atMostText renders the most of something.
func (t Theme) atMostText(text string) string { return t.atMost + " " + text }

func seconds(p usage.Point) float64 { return p.Seconds }
func held(p usage.Point) float64    { return float64(p.Held) }
func idle(p usage.Point) float64    { return float64(p.Idle) }

// usageCells returns the mean of each of up to width cells, over the time of it that was watched, and the largest. A
// cell that nobody watched is negative.
func usageCells(p *usage.Plot, points []usage.Point, get func(usage.Point) float64, width int) (out []float64, most float64) {
	n := len(points)
	width = min(width, n)
	for cell := range width {
		sum, watched := 0.0, 0.0
		for i := cell * n / width; i < (cell+1)*n/width; i++ {
			sum, watched = sum+get(points[i]), watched+p.Watched[i]
		}
		if watched <= 0 {
			out = append(out, -1)
			continue
		}
		out = append(out, sum/watched)
		most = max(most, sum/watched)
	}
	return out, most
}

// scaled returns values as parts of the largest.
func scaled(values []float64, most float64) []float64 {
	out := make([]float64, len(values))
	for i, v := range values {
		out[i] = v / max(1e-9, most)
		if v < 0 {
			out[i] = -1
		}
	}
	return out
}

// usageTable lists the users or, for an ordinary user, the jobs, with the memory of each over time.
func (m *Model) usageTable(r *usage.Report) []line {
	if len(r.Lines) == 0 {
		return m.paragraph("no job used a GPU", 2)
	}
	head := "USER"
	if r.By == usage.ByJob {
		head = "JOB"
	}
	asleep := 0 // width of the column
	if r.Total.Asleep > 0 {
		asleep = 9
	}
	cells := func(name, hours, heldText, idleText, asleepText string) string {
		return termtext.PadRight(m.truncate(termtext.Printable(name), usageLabel-1), usageLabel) + termtext.PadLeft(hours, 9) + termtext.PadLeft(heldText, 13) + termtext.PadLeft(idleText, 8) + termtext.PadLeft(asleepText, asleep) + "  "
	}
	asleepHead := ""
	if asleep > 0 {
		asleepHead = "ASLEEP"
	}
	lines := []line{{text: m.theme.bold.Render(cells(head, "GPU TIME", "HELD", "IDLE", asleepHead) + "HELD OVER TIME")}}
	width := m.width - usageLabel - 9 - 13 - 8 - asleep - 2
	for i, l := range r.Lines {
		text := cells(cmp.Or(l.Job, l.User), l.Hours(), humanfmt.GiBHours(l.Held), l.IdlePart(), l.AsleepHours())
		if i < len(r.Plot.Lines) && width > 4 {
			values, most := usageCells(r.Plot, r.Plot.Lines[i], held, width)
			text += m.sparkline(scaled(values, most))
		}
		lines = append(lines, line{text: text})
	}
	lines = append(lines, line{})
	if all := r.To.Sub(r.From).Seconds(); r.Watched < 0.999*all {
		unwatched := humanfmt.Span(time.Duration((all - r.Watched) * float64(time.Second)))
		lines = append(lines, m.paragraph(fmt.Sprintf("No agent watched %s of this time; what happened then is not known.", unwatched), 0)...)
	}
	return lines
}
