package web

import (
	"bytes"
	"cmp"
	"flag"
	"image"
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"ration/check/expect"
	"ration/check/webtest"
	"ration/internal/web"
	"ration/machine"
)

var pictures = flag.String("pictures", "", "write the pictures of docs/monitoring.md into this `folder`")

// TestPictures draws the page of a machine with something of everything at three sizes, and of a
// machine with 16 GPUs. The pictures of the docs are these.
func TestPictures(t *testing.T) {
	m := busy()
	_, url := madeUp(t, m, webtest.Past(m, time.Now()), func(o *web.Options) { o.MayChange = func(*machine.Job) bool { return true } })
	for i, size := range sizes {
		draw(t, url, "page-"+size.name, size.width, size.height, []string{"dark", "light", "light"}[i])
	}
	m = webtest.SharedMachine(16, 14)
	_, url = madeUp(t, m, webtest.Past(m, time.Now()), nil)
	draw(t, url, "page-many", 1440, 900, "light")
}

// draw draws the page, and writes the picture if a folder was given.
func draw(t *testing.T, url, name string, width, height int64, theme string) {
	t.Helper()
	b := open(t, url, as(width, height, theme, true))
	b.isLive()
	b.wait(`document.querySelector("#chart-0 .area")`)
	var shot []byte
	b.run(chromedp.CaptureScreenshot(&shot))
	picture, err := png.Decode(bytes.NewReader(shot))
	expect.OK(t, err)
	expect.Equal(t, picture.Bounds().Size(), image.Pt(int(width), int(height)), name)
	small := fewColours(picture)
	expect.True(t, len(small.Palette) >= 64, name, "only", len(small.Palette), "colours") // what is empty has few
	if *pictures == "" {
		return
	}
	var out bytes.Buffer
	expect.OK(t, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, small))
	expect.OK(t, os.WriteFile(filepath.Join(*pictures, name+".png"), out.Bytes(), 0o644))
}

// fewColours makes a picture small: with the 256 colours that it has most of.
func fewColours(in image.Image) *image.Paletted {
	count := map[color.RGBA]int{}
	box := in.Bounds()
	for y := box.Min.Y; y < box.Max.Y; y++ {
		for x := box.Min.X; x < box.Max.X; x++ {
			count[color.RGBAModel.Convert(in.At(x, y)).(color.RGBA)]++
		}
	}
	all := make([]color.RGBA, 0, len(count))
	for c := range count {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b color.RGBA) int {
		return cmp.Or(cmp.Compare(count[b], count[a]), cmp.Compare(uint32(a.R)<<16|uint32(a.G)<<8|uint32(a.B), uint32(b.R)<<16|uint32(b.G)<<8|uint32(b.B)))
	})
	var palette color.Palette
	for _, c := range all[:min(len(all), 256)] {
		palette = append(palette, c)
	}
	index := map[color.RGBA]uint8{}
	for _, c := range all {
		index[c] = uint8(palette.Index(c))
	}
	out := image.NewPaletted(box, palette)
	for y := box.Min.Y; y < box.Max.Y; y++ {
		for x := box.Min.X; x < box.Max.X; x++ {
			out.SetColorIndex(x, y, index[color.RGBAModel.Convert(in.At(x, y)).(color.RGBA)])
		}
	}
	return out
}
