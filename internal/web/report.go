package web

import (
	"cmp"
	"fmt"
	"html/template"
	"io"
	"time"

	"ration/internal/usage"
)

// reportView is a report as a file.
type reportView struct {
	usageView
	Host, Version, Made string
	Style               template.CSS
}

// WriteReport writes a report as one HTML file, which needs nothing else. scope says whose jobs are in it; empty
// for all users.
func WriteReport(w io.Writer, r usage.Report, version, scope string, now time.Time) error {
	style, err := files.ReadFile("files/style.css")
	if err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	v := reportView{usageView: viewUsage(&r, newColours(), now.Location()), Host: hostName(), Version: version, Made: now.Format("Mon 2 Jan 2006 15:04 MST"), Style: template.CSS(style)}
	v.Scope = cmp.Or(scope, "jobs of all users")
	if err := templates().ExecuteTemplate(w, "report", v); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}
