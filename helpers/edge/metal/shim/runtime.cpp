// Runs a grid of threadgroups on one CPU thread: a fibre for each thread, scheduled until all wait at a barrier.
// The compiled text reports every read and write (g++'s -fsanitize=thread calls __tsan_*, defined here), so an
// access out of bounds, of memory nobody wrote, or unordered with another thread's is found where it happens.
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>

#include <initializer_list>

#include "runtime.h"

// Without SHIM_UCONTEXT, which is for the tests, an x86-64 switches stacks in a few instructions.
#if defined(__x86_64__) && !defined(SHIM_UCONTEXT)
#define SHIM_SWITCH 1
#endif

using namespace shim;

extern "C" char __executable_start, _end;  // of the linker: where the program lies
using std::size_t;

namespace {
constexpr size_t PAGE = 4096, STACK = 256 << 10, RESERVED = 32ul << 30, SHARED_LIMIT = 32 << 10;
constexpr unsigned MOST_THREADS = 1024, MOST_BUFFERS = 31, MOST_SHARED = 64, MANY_WAITS = 64;
enum Space { DEVICE, SHARED };

enum State { READY, AT_BARRIER, AT_EXCHANGE, DONE };
struct Fibre {
    Place place;
    State state;
    bool started;
    unsigned line, flags, bytes;
    Operation operation;
    const char* function;
    const void* value;
    unsigned waits, acquired, number;  // number: in the grid, plus one
    unsigned char* stack;
#ifdef SHIM_SWITCH
    void* top;
#else
    ucontext_t context;
#endif
};

// The last write and the last two readers of one element, as far as they are not ordered by a barrier.
struct Record {
    unsigned written, writer, write_site;
    unsigned read[2], reader[2], read_site[2];
};
struct Area {
    const char* name;
    unsigned char* base;
    size_t bytes, element;
    Record* records;
    bool read_only;
    unsigned long reads, writes, read_bytes, written_bytes;
};

Fibre fibres[MOST_THREADS];
Fibre* current;
unsigned grid[3], group_size[3], groups[3], width, live, kernel_number, deadline_ms;
Area buffers[MOST_BUFFERS], shared_areas[MOST_SHARED];
unsigned buffer_count, shared_count;
size_t shared_bytes;
unsigned char *region, *buffers_from, *shared_from;
size_t region_bytes;
Lanes* snapshots;
void* arguments[MOST_BUFFERS];
unsigned now = 1, group_start = 1, group_synced[2], simd_synced[MOST_THREADS][2];
unsigned long site;  // where the text last touched memory
unsigned long barriers, exchanges, group_count;

// Reports: one line of JSON, and the end of the process.
char report[16384];
unsigned report_length;
void add(const char* format, ...) __attribute__((format(printf, 1, 2)));
void add(const char* format, ...) {
    va_list list;
    va_start(list, format);
    const int n = vsnprintf(report + report_length, sizeof report - report_length, format, list);
    va_end(list);
    report_length += n > 0 ? n : 0;
    if (report_length >= sizeof report) report_length = sizeof report - 1;
}
[[noreturn]] void end() {
    add("}\n");
    for (unsigned done = 0; done < report_length;) {
        const ssize_t n = write(1, report + done, report_length - done);
        if (n <= 0) break;
        done += n;
    }
    _exit(0);
}
void begin(const char* fault, unsigned long where) {
    report_length = 0;
    add("{\"fault\": \"%s\", \"site\": %lu", fault, where);
}
void add_place(const char* key, const Place& place) {
    add(", \"%s\": {\"in_grid\": [%u, %u, %u], \"in_group\": [%u, %u, %u], \"group\": [%u, %u, %u]}", key, place.in_grid[0],
        place.in_grid[1], place.in_grid[2], place.in_group[0], place.in_group[1], place.in_group[2], place.group[0],
        place.group[1], place.group[2]);
}
void add_current() {
    if (current) add_place("thread", current->place);
}

Place place_of_number(unsigned number) {
    Place place = {};
    const unsigned at[3] = {number % grid[0], number / grid[0] % grid[1], number / grid[0] / grid[1]};
    for (int i = 0; i < 3; i++) {
        place.in_grid[i] = at[i];
        place.group[i] = at[i] / group_size[i];
        place.in_group[i] = at[i] % group_size[i];
    }
    const unsigned x = grid[0] - place.group[0] * group_size[0], y = grid[1] - place.group[1] * group_size[1];
    const unsigned across = x < group_size[0] ? x : group_size[0], down = y < group_size[1] ? y : group_size[1];
    place.index = (place.in_group[2] * down + place.in_group[1]) * across + place.in_group[0];
    return place;
}

// Whether an access stamped `then` by thread number `other` (plus one) comes before the current thread's next one.
bool ordered(unsigned then, unsigned other, Space space) {
    if (other == current->number) return true;
    if (then < group_start) return space == SHARED || then < current->acquired;
    if (then < group_synced[space]) return true;
    const unsigned simdgroup = current->place.simdgroup;
    return then < simd_synced[simdgroup][space] && place_of_number(other - 1).index / width == simdgroup;
}

[[noreturn]] void race(const Area& area, Space space, size_t element, bool first_writes, unsigned other, unsigned other_site, bool second_writes) {
    begin("race", site);
    add(", \"memory\": \"%s\", \"area\": %d, \"name\": \"%s\", \"offset\": %lu, \"first\": \"%s\", \"second\": \"%s\", \"other_site\": %u",
        space == SHARED ? "threadgroup" : "device", int(&area - (space == SHARED ? shared_areas : buffers)), area.name,
        element * area.element, first_writes ? "write" : "read", second_writes ? "write" : "read", other_site);
    add_current();
    add_place("other", place_of_number(other - 1));
    end();
}

void note(Area& area, Space space, size_t element, bool writes) {
    Record& r = area.records[element];
    const unsigned me = current->number;
    const bool stale = space == SHARED && r.written < group_start;
    if (space == SHARED && !writes && (stale || !r.writer)) {
        begin("uninitialised", site);
        add(", \"area\": %d, \"name\": \"%s\", \"offset\": %lu", int(&area - shared_areas), area.name, element * area.element);
        add_current();
        end();
    }
    if (r.writer && !ordered(r.written, r.writer, space)) race(area, space, element, true, r.writer, r.write_site, writes);
    if (writes) {
        for (int i = 0; i < 2; i++)
            if (r.reader[i] && !ordered(r.read[i], r.reader[i], space))
                race(area, space, element, false, r.reader[i], r.read_site[i], true);
        r.written = now, r.writer = me, r.write_site = site;
        return;
    }
    int slot = -1;
    for (int i = 0; i < 2 && slot < 0; i++)
        if (r.reader[i] == me || !r.reader[i] || ordered(r.read[i], r.reader[i], space)) slot = i;
    if (slot >= 0) r.read[slot] = now, r.reader[slot] = me, r.read_site[slot] = site;
}

[[noreturn]] void out_of_bounds(const char* kind, int area, const char* name, long offset, size_t bytes, size_t size, bool writes) {
    begin("out_of_bounds", site);
    add(", \"memory\": \"%s\", \"area\": %d, \"name\": \"%s\", \"offset\": %ld, \"bytes\": %lu, \"size\": %lu, \"access\": \"%s\"", kind,
        area, name, offset, bytes, size, writes ? "write" : "read");
    add_current();
    end();
}

enum Access { READ, WRITE, ATOMIC, READ_ATOMIC };
void touch(Area& area, Space space, size_t offset, size_t bytes, Access access) {
    if (access != WRITE) area.reads++, area.read_bytes += bytes;
    if (access == WRITE || access == ATOMIC) area.writes++, area.written_bytes += bytes;
    if (access == READ_ATOMIC) return;
    for (size_t e = offset / area.element; e <= (offset + bytes - 1) / area.element; e++) {
        if (access != ATOMIC) {
            note(area, space, e, access == WRITE);
        } else {
            Record& r = area.records[e];
            r.written = now, r.writer = current->number, r.write_site = site;
        }
    }
}

void check(uintptr_t address, size_t bytes, Access access, void* from) {
    if (address - reinterpret_cast<uintptr_t>(region) < region_bytes) return;
    site = reinterpret_cast<unsigned long>(from);
    if (!current) return;
    const uintptr_t in_buffers = address - reinterpret_cast<uintptr_t>(buffers_from);
    if (in_buffers < buffer_count * RESERVED) {
        const unsigned i = in_buffers / RESERVED;
        const long offset = static_cast<long>(address - reinterpret_cast<uintptr_t>(buffers[i].base));
        if (offset < 0 || offset + bytes > buffers[i].bytes)
            out_of_bounds("device", i, "", offset, bytes, buffers[i].bytes, access != READ);
        return touch(buffers[i], DEVICE, offset, bytes, access);
    }
    const uintptr_t in_shared = address - reinterpret_cast<uintptr_t>(shared_from);
    if (in_shared < MOST_SHARED * RESERVED) {
        // Each variable lies in the middle of its own reserved span.
        const unsigned i = in_shared / RESERVED;
        Area& area = shared_areas[i];
        const long offset = static_cast<long>(address - reinterpret_cast<uintptr_t>(area.base));
        if (offset < 0 || offset + bytes > area.bytes)
            out_of_bounds("threadgroup", i, area.name ? area.name : "", offset, bytes, area.bytes, access != READ);
        return touch(area, SHARED, offset, bytes, access);
    }
    if (address - reinterpret_cast<uintptr_t>(&__executable_start) < static_cast<size_t>(&_end - &__executable_start)) return;
    begin("wild", site);
    add(", \"access\": \"%s\", \"address\": %lu", access != READ ? "write" : "read", address);
    add_current();
    end();
}

// Fibres.
#ifdef SHIM_SWITCH
void* scheduler;
extern "C" void shim_switch(void** save, void* load);
asm(R"(
.text
.globl shim_switch
.type shim_switch, @function
shim_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size shim_switch, .-shim_switch
)");
void to_scheduler() { shim_switch(&current->top, scheduler); }
void to_fibre() { shim_switch(&scheduler, current->top); }
#else
ucontext_t scheduler;
void to_scheduler() { swapcontext(&current->context, &scheduler); }
void to_fibre() { swapcontext(&scheduler, &current->context); }
#endif

void thread_main() {
    for (;;) {
        const Kernel& kernel = shim_kernels[kernel_number];
        kernel.call(arguments, kernel.parameters);
        current->state = DONE;
        to_scheduler();
    }
}

void start(Fibre& fibre) {
    fibre.started = true;
#ifdef SHIM_SWITCH
    void** top = reinterpret_cast<void**>(fibre.stack + STACK) - 1;
    *--top = reinterpret_cast<void*>(&thread_main);
    top -= 6;
    memset(top, 0, 6 * sizeof *top);
    fibre.top = top;
#else
    getcontext(&fibre.context);
    fibre.context.uc_stack.ss_sp = fibre.stack;
    fibre.context.uc_stack.ss_size = STACK;
    makecontext(&fibre.context, thread_main, 0);
#endif
}

void resume(Fibre& fibre) {
    current = &fibre;
    here = &fibre.place;
    if (!fibre.started) start(fibre);
    to_fibre();
    current = nullptr;
}

void wait(State state, unsigned flags, unsigned line) {
    current->state = state;
    current->flags = flags;
    current->line = line;
    to_scheduler();
}

// Threads that stand elsewhere when the others wait at `line`: the smallest number of each kind, and how many.
[[noreturn]] void divergent(const char* what, unsigned first, unsigned last, unsigned line) {
    begin("divergent", 0);
    add(", \"what\": \"%s\", \"line\": %u, \"waiting\": [", what, line);
    unsigned at = 0, ended = 0, elsewhere = 0;
    const Fibre *one_ended = nullptr, *one_elsewhere = nullptr, *one_at = nullptr;
    for (unsigned i = first; i < last; i++) {
        const Fibre& f = fibres[i];
        if (f.state == DONE) {
            if (!ended++) one_ended = &f;
        } else if (f.line == line) {
            if (!at++) one_at = &f;
        } else if (!elsewhere++) {
            one_elsewhere = &f;
        }
    }
    add("%u, %u, %u]", at, ended, elsewhere);
    if (one_at) add_place("thread", one_at->place);
    if (one_ended) add_place("ended", one_ended->place);
    if (one_elsewhere) add(", \"elsewhere_line\": %u", one_elsewhere->line), add_place("elsewhere", one_elsewhere->place);
    end();
}

// Of two places in one function the first in the text comes first; of two functions nothing says which does.
void require_one_function(unsigned first, unsigned last, unsigned line) {
    const Fibre *one = nullptr, *other = nullptr;
    for (unsigned i = first; i < last; i++) {
        if (fibres[i].state != AT_EXCHANGE) continue;
        if (fibres[i].line == line && !one) one = &fibres[i];
        if (fibres[i].line != line) other = &fibres[i];
    }
    if (!other || !strcmp(one->function, other->function)) return;
    begin("order", 0);
    add(", \"line\": %u, \"functions\": [\"%s\", \"%s\"]", line, one->function, other->function);
    add_place("thread", one->place);
    end();
}

// One simdgroup whose lanes all wait or have ended: release those at the exchange that stands first in the text.
bool resolve_exchange(unsigned first, unsigned last) {
    unsigned line = ~0u;
    for (unsigned i = first; i < last; i++)
        if (fibres[i].state == AT_EXCHANGE && fibres[i].line < line) line = fibres[i].line;
    if (line == ~0u) return false;
    require_one_function(first, last, line);
    const unsigned simdgroup = first / width;
    Lanes& lanes = snapshots[simdgroup];
    lanes.active = 0;
    Operation operation = SIMD_EXCHANGE;
    unsigned flags = 0;
    for (unsigned i = first; i < last; i++) {
        Fibre& f = fibres[i];
        if (f.state != AT_EXCHANGE || f.line != line) continue;
        operation = f.operation, flags = f.flags;
        lanes.active |= 1u << (i - first);
        memcpy(lanes.value[i - first], f.value, f.bytes);
    }
    const unsigned all = width == 32 ? ~0u : (1u << width) - 1;
    const unsigned there = last - first == 32 ? ~0u : (1u << (last - first)) - 1;
    if (operation == MATRIX && lanes.active != all) divergent("simdgroup matrix function", first, last, line);
    if (operation == SIMD_BARRIER && lanes.active != there) divergent("simdgroup_barrier", first, last, line);
    exchanges++;
    now++;
    if (operation == SIMD_BARRIER)
        for (int space = 0; space < 2; space++)
            if (flags >> space & 1) simd_synced[simdgroup][space] = now;
    for (unsigned i = first; i < last; i++)
        if (fibres[i].state == AT_EXCHANGE && fibres[i].line == line) fibres[i].state = READY;
    return true;
}

void run_group() {
    now++;
    group_start = now;
    group_synced[DEVICE] = group_synced[SHARED] = now;
    for (unsigned s = 0; s * width < live; s++) simd_synced[s][DEVICE] = simd_synced[s][SHARED] = now;
    for (;;) {
        for (unsigned first = 0; first < live; first += width) {
            const unsigned last = first + width < live ? first + width : live;
            do {
                for (unsigned i = first; i < last; i++)
                    if (fibres[i].state == READY) resume(fibres[i]);
                bool yielded = false;
                for (unsigned i = first; i < last; i++) yielded |= fibres[i].state == READY;
                if (yielded) break;
            } while (resolve_exchange(first, last));
        }
        bool ready = false, waiting = false;
        unsigned line = 0, flags = 0;
        for (unsigned i = 0; i < live; i++) {
            ready |= fibres[i].state == READY;
            if (fibres[i].state == AT_BARRIER && !waiting) waiting = true, line = fibres[i].line, flags = fibres[i].flags;
        }
        if (ready) continue;
        if (!waiting) return;
        for (unsigned i = 0; i < live; i++)
            if (fibres[i].state != AT_BARRIER || fibres[i].line != line) divergent("threadgroup_barrier", 0, live, line);
        barriers++;
        now++;
        for (int space = 0; space < 2; space++)
            if (flags >> space & 1) group_synced[space] = now;
        for (unsigned i = 0; i < live; i++) fibres[i].state = READY;
    }
}

void place_threads(unsigned gx, unsigned gy, unsigned gz) {
    const unsigned at[3] = {gx, gy, gz};
    unsigned size[3];
    for (int i = 0; i < 3; i++) {
        const unsigned left = grid[i] - at[i] * group_size[i];
        size[i] = left < group_size[i] ? left : group_size[i];
    }
    live = size[0] * size[1] * size[2];
    for (unsigned index = 0; index < live; index++) {
        Fibre& f = fibres[index];
        Place& p = f.place;
        const unsigned in_group[3] = {index % size[0], index / size[0] % size[1], index / size[0] / size[1]};
        for (int i = 0; i < 3; i++) {
            p.in_group[i] = in_group[i];
            p.group[i] = at[i];
            p.in_grid[i] = at[i] * group_size[i] + in_group[i];
            p.group_size[i] = size[i];
            p.dispatched_size[i] = group_size[i];
            p.grid[i] = grid[i];
            p.groups[i] = groups[i];
        }
        p.index = index;
        p.lane = index % width;
        p.simdgroup = index / width;
        p.width = width;
        p.simdgroups = (live + width - 1) / width;
        f.state = READY;
        f.waits = f.acquired = 0;
        f.number = (p.in_grid[2] * grid[1] + p.in_grid[1]) * grid[0] + p.in_grid[0] + 1;
    }
}

unsigned char* reserve(size_t bytes) {
    void* at = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) {
        begin("host", 0);
        add(", \"what\": \"%lu bytes of address space are not to be had\"", bytes);
        end();
    }
    return static_cast<unsigned char*>(at);
}
void* zeros(size_t bytes) {
    void* at = reserve(bytes);
    mprotect(at, bytes, PROT_READ | PROT_WRITE);
    return at;
}

void on_alarm(int, siginfo_t*, void* context) {
    unsigned long where = site;
#ifdef __x86_64__
    const unsigned long counter = static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP];
    if (!where) where = counter;
#else
    (void)context;
#endif
    begin("deadline", where);
    add_current();
    end();
}
void on_fault(int signal, siginfo_t* info, void* context) {
    unsigned long where = site;
#ifdef __x86_64__
    where = static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP] + 1;
#else
    (void)context;
#endif
    const uintptr_t address = reinterpret_cast<uintptr_t>(info->si_addr);
    const bool in_stacks = signal == SIGSEGV && address - reinterpret_cast<uintptr_t>(region) < region_bytes;
    begin(signal == SIGFPE ? "division" : in_stacks ? "stack" : "crash", where);
    add(", \"signal\": %d", signal);
    add_current();
    end();
}
void catch_signals() {
    static unsigned char alternative[64 << 10];
    stack_t stack = {};
    stack.ss_sp = alternative;
    stack.ss_size = sizeof alternative;
    sigaltstack(&stack, nullptr);
    struct sigaction action = {};
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    action.sa_sigaction = on_fault;
    for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) sigaction(signal, &action, nullptr);
    action.sa_sigaction = on_alarm;
    sigaction(SIGALRM, &action, nullptr);
    struct itimerval timer = {};
    timer.it_value.tv_sec = deadline_ms / 1000;
    timer.it_value.tv_usec = deadline_ms % 1000 * 1000;
    setitimer(ITIMER_REAL, &timer, nullptr);
}

void make_region() {
    const unsigned threads = group_size[0] * group_size[1] * group_size[2];
    const size_t head = (sizeof(Lanes) * (MOST_THREADS / 4) + PAGE - 1) / PAGE * PAGE;
    region_bytes = head + threads * (STACK + PAGE);
    region = reserve(region_bytes);
    mprotect(region, head, PROT_READ | PROT_WRITE);
    snapshots = reinterpret_cast<Lanes*>(region);
    for (unsigned i = 0; i < threads; i++) {
        fibres[i].stack = region + head + i * (STACK + PAGE) + PAGE;
        mprotect(fibres[i].stack, STACK, PROT_READ | PROT_WRITE);
    }
}

void map_buffers(int file, char** argv) {
    buffers_from = reserve(buffer_count ? buffer_count * RESERVED : PAGE);
    shared_from = reserve(MOST_SHARED * RESERVED);
    for (unsigned i = 0; i < buffer_count; i++, argv += 3) {
        Area& area = buffers[i];
        const size_t offset = strtoul(argv[0], nullptr, 10);
        area.name = "";
        area.bytes = strtoul(argv[1], nullptr, 10);
        area.element = strtoul(argv[2], nullptr, 10);
        area.base = buffers_from + i * RESERVED + RESERVED / 2;
        if (area.bytes) {
            const size_t mapped = (area.bytes + PAGE - 1) / PAGE * PAGE;
            if (mmap(area.base, mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, offset) == MAP_FAILED) {
                begin("host", 0);
                add(", \"what\": \"a buffer of %lu bytes cannot be mapped\"", area.bytes);
                end();
            }
        }
        area.records = static_cast<Record*>(zeros((area.bytes / area.element + 2) * sizeof(Record)));
        arguments[i] = area.base;
    }
}

void check_sizes() {
    const Kernel& kernel = shim_kernels[kernel_number];
    for (unsigned i = 0; i < kernel.count; i++) {
        if (kernel.parameters[i].kind != BUFFER || kernel.sizes[i] <= buffers[kernel.parameters[i].buffer].bytes) continue;
        begin("argument", 0);
        add(", \"buffer\": %u, \"needs\": %lu, \"has\": %lu", kernel.parameters[i].buffer, kernel.sizes[i],
            buffers[kernel.parameters[i].buffer].bytes);
        end();
    }
}

void add_areas(const char* key, const Area* areas, unsigned count) {
    add(", \"%s\": [", key);
    for (unsigned i = 0; i < count; i++)
        add("%s[\"%s\", %lu, %lu, %lu, %lu, %lu]", i ? ", " : "", areas[i].name, areas[i].bytes, areas[i].reads, areas[i].writes,
            areas[i].read_bytes, areas[i].written_bytes);
    add("]");
}
}  // namespace

namespace shim {
const Place* here;
}

extern "C" {
void shim_barrier(unsigned flags, unsigned line) { wait(AT_BARRIER, flags, line); }

const Lanes* shim_exchange(const void* value, unsigned bytes, Operation operation, unsigned flags, Site at) {
    Fibre& me = *current;
    me.value = value, me.bytes = bytes, me.operation = operation, me.function = at.function;
    wait(AT_EXCHANGE, flags, at.line);
    return &snapshots[me.place.simdgroup];
}

void* shim_shared(unsigned id, const char* name, size_t bytes, size_t element) {
    if (id >= MOST_SHARED) shim_fault("more than 64 threadgroup variables in one text", 0);
    Area& area = shared_areas[id];
    if (!area.base) {
        area.name = name, area.bytes = bytes, area.element = element;
        area.base = shared_from + id * RESERVED + RESERVED / 2;
        mprotect(area.base, (bytes + PAGE - 1) / PAGE * PAGE, PROT_READ | PROT_WRITE);
        area.records = static_cast<Record*>(zeros((bytes / element + 2) * sizeof(Record)));
        shared_bytes += bytes;
        if (id >= shared_count) shared_count = id + 1;
        if (shared_bytes > SHARED_LIMIT) {
            begin("threadgroup_memory", 0);
            add(", \"name\": \"%s\", \"bytes\": %lu, \"limit\": %lu", name, shared_bytes, SHARED_LIMIT);
            end();
        }
    }
    return area.base;
}

void shim_atomic(const volatile void* address, size_t bytes, unsigned waits) {
    check(reinterpret_cast<uintptr_t>(address), bytes, waits ? READ_ATOMIC : ATOMIC, __builtin_return_address(0));
    // A thread that waits for another one's value must let it run.
    if (waits && ++current->waits % MANY_WAITS == 0) to_scheduler();
}

void shim_fence(unsigned flags) {
    if (flags & 1) current->acquired = ++now;
}

void shim_fault(const char* what, unsigned line) {
    begin("misuse", 0);
    add(", \"what\": \"%s\", \"line\": %u", what, line);
    add_current();
    end();
}

[[noreturn]] void shim_component(int index, int count) {
    begin("index", reinterpret_cast<unsigned long>(__builtin_return_address(0)));
    add(", \"index\": %d, \"type\": \"vector of %d components\"", index, count);
    add_current();
    end();
}

// What g++'s -fsanitize=bounds passes to its handler: where, and the types of the array and of the index.
struct Type {
    unsigned short kind, info;
    char name[1];
};
struct Bounds {
    const char* file;
    unsigned line, column;
    const Type *array, *index;
};
[[noreturn]] void __ubsan_handle_out_of_bounds_abort(const Bounds* bounds, unsigned long index) {
    const unsigned bits = 1u << (bounds->index->info >> 1);
    const bool is_signed = bounds->index->info & 1;
    const long value = bits >= 64 ? long(index) : is_signed ? long(index << (64 - bits)) >> (64 - bits) : long(index);
    begin("index", reinterpret_cast<unsigned long>(__builtin_return_address(0)));
    add(", \"index\": %ld, \"type\": \"array %s\"", value, bounds->array->name);
    add_current();
    end();
}

[[noreturn]] void __ubsan_handle_divrem_overflow_abort(const void*, unsigned long, unsigned long) {
    begin("division", reinterpret_cast<unsigned long>(__builtin_return_address(0)));
    add_current();
    end();
}

#define SHIM_HOOK(bytes)                                                                                              \
    void __tsan_read##bytes(void* at) { check(reinterpret_cast<uintptr_t>(at), bytes, READ, __builtin_return_address(0)); }  \
    void __tsan_write##bytes(void* at) { check(reinterpret_cast<uintptr_t>(at), bytes, WRITE, __builtin_return_address(0)); } \
    void __tsan_unaligned_read##bytes(void* at) { check(reinterpret_cast<uintptr_t>(at), bytes, READ, __builtin_return_address(0)); } \
    void __tsan_unaligned_write##bytes(void* at) { check(reinterpret_cast<uintptr_t>(at), bytes, WRITE, __builtin_return_address(0)); } \
    void __tsan_volatile_read##bytes(void* at) { check(reinterpret_cast<uintptr_t>(at), bytes, READ, __builtin_return_address(0)); } \
    void __tsan_volatile_write##bytes(void* at) { check(reinterpret_cast<uintptr_t>(at), bytes, WRITE, __builtin_return_address(0)); }
SHIM_HOOK(1)
SHIM_HOOK(2)
SHIM_HOOK(4)
SHIM_HOOK(8)
SHIM_HOOK(16)
void __tsan_read_range(void* at, size_t bytes) { check(reinterpret_cast<uintptr_t>(at), bytes, READ, __builtin_return_address(0)); }
void __tsan_write_range(void* at, size_t bytes) { check(reinterpret_cast<uintptr_t>(at), bytes, WRITE, __builtin_return_address(0)); }
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() {}
}

int main(int argc, char** argv) {
    if (argc < 11) return 2;
    const auto number = [&](int i) { return static_cast<unsigned>(strtoul(argv[i], nullptr, 10)); };
    const int file = number(1);
    kernel_number = number(2);
    for (int i = 0; i < 3; i++) {
        grid[i] = number(3 + i);
        group_size[i] = number(6 + i);
        groups[i] = (grid[i] + group_size[i] - 1) / group_size[i];
    }
    width = number(9);
    deadline_ms = number(10);
    buffer_count = (argc - 11) / 3;
    catch_signals();
    make_region();
    map_buffers(file, argv + 11);
    check_sizes();
    for (unsigned z = 0; z < groups[2]; z++)
        for (unsigned y = 0; y < groups[1]; y++)
            for (unsigned x = 0; x < groups[0]; x++) {
                place_threads(x, y, z);
                run_group();
                group_count++;
            }
    report_length = 0;
    add("{\"fault\": \"\", \"barriers\": %lu, \"exchanges\": %lu, \"groups\": %lu", barriers, exchanges, group_count);
    add_areas("buffers", buffers, buffer_count);
    add_areas("shared", shared_areas, shared_count);
    end();
}
