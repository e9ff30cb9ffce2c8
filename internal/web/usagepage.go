package web

import (
	"html/template"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"ration/internal/usage"
)

// spans are the times that the page shows of the accounts.
var spans = map[string]time.Duration{"day": 24 * time.Hour, "week": 7 * 24 * time.Hour}

// usagePage is the part of the page about a day or a week.
type usagePage struct {
	usageView
	Span        string
	First, Last int64 // edges of the plots, in Unix seconds
	Step        int64
	From, To    int64 // the selected time
	Error       string
	Selected    bool
}

// serveUsage answers with the part of the page about a day or a week.
func (s *server) serveUsage(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	if spans[query.Get("usage")] == 0 {
		http.Error(w, "ration: usage=day or usage=week", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write([]byte(s.drawUsage(query, time.Now())))
}

// drawUsage draws what the address asks for: usage is day or week, from and to are the selected time.
func (s *server) drawUsage(query url.Values, now time.Time) template.HTML {
	span := query.Get("usage")
	v := usagePage{Span: span}
	r, err := s.opts.Usage(now.Add(-spans[span]), now, true)
	switch {
	case err != nil:
		v.Error = sentence(err.Error())
	case r.Plot == nil || len(r.Plot.All) == 0:
		v.Error = "The agent that runs knows no plots: it is older than this page. Restart it."
	default:
		err = v.fill(s, r, query)
		if err != nil {
			v.Error = sentence(err.Error())
		}
	}
	return template.HTML(render("usage-body", v)) // written by a template
}

// fill prepares the plots of a report, and the table of the selected time.
func (v *usagePage) fill(s *server, r usage.Report, query url.Values) error {
	p := r.Plot
	v.First, v.Step = p.From.Unix(), int64(p.Step)
	v.Last = v.First + v.Step*int64(len(p.All))
	v.From, v.To = v.First, v.Last
	from, err1 := strconv.ParseInt(query.Get("from"), 10, 64)
	to, err2 := strconv.ParseInt(query.Get("to"), 10, 64)
	if from, to = max(from, v.First), min(to, v.Last); err1 == nil && err2 == nil && from < to {
		v.From, v.To = from, to
	}
	v.Selected = v.From != v.First || v.To != v.Last
	col := s.hub.copyColours()
	v.usageView = viewUsage(&r, col, time.Local)
	if v.Selected {
		part, err := s.opts.Usage(time.Unix(v.From, 0), time.Unix(v.To, 0), false)
		if err != nil {
			return err
		}
		plots := v.Plots
		v.usageView = viewUsage(&part, col, time.Local)
		v.Plots = plots
	}
	part := func(seconds int64) string { return percentOf(uint64(seconds), uint64(v.Last-v.First)) }
	v.Brush = &brush{part(v.From - v.First), part(v.To - v.First), part(v.Last - v.To)}
	return nil
}

// copyColours returns the colours of the page as they are now.
func (h *hub) copyColours() *colours {
	h.draw.Lock()
	defer h.draw.Unlock()
	return &colours{of: maps.Clone(h.colours.of)}
}
