// What a compiled text asks of the runtime: its thread's place, barriers, exchanges between lanes.
#pragma once

namespace shim {
constexpr unsigned most_lanes = 32, slot_bytes = 256;

// Where a thread is. Sizes of this threadgroup are its own: the last one in a row may be smaller.
struct Place {
    unsigned in_grid[3], in_group[3], group[3];
    unsigned group_size[3], dispatched_size[3], grid[3], groups[3];
    unsigned index, lane, simdgroup, width, simdgroups;
};

// What the lanes of a simdgroup brought to an exchange; `active` has a bit for each lane that came.
struct Lanes {
    unsigned active;
    alignas(16) unsigned char value[most_lanes][slot_bytes];
};

// Where the text calls a function across lanes; as a default argument it names the caller's line.
struct Site {
    unsigned line;
    const char* function;
    static constexpr Site current(unsigned line = __builtin_LINE(), const char* function = __builtin_FUNCTION()) {
        return {line, function};
    }
};

enum Operation : unsigned { SIMD_BARRIER, SIMD_EXCHANGE, MATRIX };

extern const Place* here;

enum Kind : unsigned char {
    BUFFER, POSITION_IN_GRID, POSITION_IN_GROUP, GROUP_POSITION, GROUP_SIZE, DISPATCHED_SIZE, GRID_SIZE,
    GROUPS, INDEX_IN_GROUP, LANE, SIMDGROUP, WIDTH, SIMDGROUPS, LANE_IN_QUAD, QUAD, QUADS
};
struct Parameter {
    Kind kind;
    unsigned buffer;
};
struct Kernel {
    const char* name;
    void (*call)(void* const* buffers, const Parameter* parameters);
    const Parameter* parameters;
    unsigned count;
    const unsigned long* sizes;
};
}  // namespace shim

extern "C" {
extern const shim::Kernel shim_kernels[];
extern const unsigned shim_kernel_count;
void shim_barrier(unsigned flags, unsigned line);
const shim::Lanes* shim_exchange(const void* value, unsigned bytes, shim::Operation, unsigned flags, shim::Site);
void* shim_shared(unsigned id, const char* name, unsigned long bytes, unsigned long element);
void shim_atomic(const volatile void* address, unsigned long bytes, unsigned waits);
void shim_fence(unsigned flags);
[[noreturn]] void shim_fault(const char* what, unsigned line);
}
