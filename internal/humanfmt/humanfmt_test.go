package humanfmt

import (
	"testing"
	"time"

	"ration/check/expect"
)

func TestRender(t *testing.T) {
	for _, tt := range []struct{ got, want string }{
		{Three(0), "0.00"},
		{Three(9.994), "9.99"},
		{Three(9.996), "10.0"},
		{Three(99.96), "100"},
		{Three(12345), "12345"},
		{Nanoseconds(0), "0.00 ns"},
		{Nanoseconds(61.8), "61.8 ns"},
		{Duration(9240 * time.Microsecond), "9.24 ms"},
		{Duration(90 * time.Second), "90.0 s"},
		{Span(0), "0 s"},
		{Span(20 * time.Millisecond), "20 ms"},
		{Span(2500 * time.Microsecond), "2.5 ms"},
		{Span(100 * time.Second), "100 s"},
		{Span(12 * time.Minute), "12 min"},
		{Span(150 * time.Minute), "2.5 h"},
		{Span(7 * 24 * time.Hour), "7 days"},
		{Range(239, 416), "239–416 ns"},
		{Range(239, 32.1e6), "239 ns–32.1 ms"},
		{Percent(0), "0 %"},
		{Percent(0.0001), "<0.001 %"},
		{Percent(0.0123), "0.012 %"},
		{Percent(62.04), "62.0 %"},
		{Count(0), "0"},
		{Count(999), "999"},
		{Count(1098541), "1,098,541"},
		{Count(-1000), "-1,000"},
		{Count(-100), "-100"},
		{Plural(0, "job", "jobs"), "0 jobs"},
		{Plural(1, "job", "jobs"), "1 job"},
		{Plural(2000, "process", "processes"), "2,000 processes"},
		{Ranges([]int{0, 2, 3, 4, 7}, ",", "-"), "0,2-4,7"},
		{Ranges(nil, ",", "-"), ""},
		{ItOrThem(1), "it"},
		{ItOrThem(2), "them"},
		{Bytes(0), "0 B"},
		{Bytes(1023), "1023 B"},
		{Bytes(1024), "1 KiB"},
		{Bytes(10 << 30), "10 GiB"},
		{Bytes(100 << 30), "100 GiB"},
		{Bytes(6<<30 + 256<<20), "6.25 GiB"},
		{Bytes(1<<30 - 1), "1 GiB"},
		{Bytes(1<<64 - 1), "16 EiB"},
		{Short(512), "512"},
		{Short(512 << 20), "512M"},
		{Short(1536 << 20), "1.5G"},
	} {
		expect.Equal(t, tt.got, tt.want)
	}
}

func TestOnGPUs(t *testing.T) {
	expect.Equal(t, OnGPUs(map[int]uint64{0: 40 * (1 << 30)}), "40 GiB on GPU 0")
	expect.Equal(t, OnGPUs(map[int]uint64{0: 40 * (1 << 30), 1: 40 * (1 << 30)}), "40 GiB on GPUs 0, 1")
	expect.Equal(t, OnGPUs(map[int]uint64{0: 1 << 30, 1: 1 << 30, 2: 1 << 30, 3: 1 << 30, 7: 1 << 30}), "1 GiB on GPUs 0-3, 7")
	expect.Equal(t, OnGPUs(map[int]uint64{0: 40 * (1 << 30), 1: (1 << 30), 3: 40 * (1 << 30)}), "40 GiB on GPUs 0, 3; 1 GiB on GPU 1")
	expect.Equal(t, OnGPUs(map[int]uint64{-1: 40 << 30}), "40 GiB on any GPU")
	expect.Equal(t, OnGPUs(map[int]uint64{-2: 40 << 30}), "40 GiB on any 2 GPUs")
}

func TestRefusal(t *testing.T) {
	expect.Equal(t, Refusal(3<<30, 1<<30, 2<<30, []Holder{{"itself", 1 << 30}}), "asked for 3 GiB with 1 GiB free of 2 GiB; most was held by itself 1 GiB")
	expect.Equal(t, Refusal(3<<30, 0, 0, nil), "asked for 3 GiB, and the job had none of the device")
}
