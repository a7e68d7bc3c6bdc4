// Calls a kernel with the arguments that its parameters' attributes name; included after the text.
#pragma once
#include <utility>

#include "runtime.h"

// The runtime's own reads are none of the kernel's.
#define SHIM_QUIET __attribute__((no_sanitize("thread")))

namespace shim {
template <class P> struct from_place {
    SHIM_QUIET static P make(const unsigned* three) { return static_cast<P>(three[0]); }
};
template <class T, int N> struct from_place<metal::vec<T, N>> {
    SHIM_QUIET static metal::vec<T, N> make(const unsigned* three) {
        metal::vec<T, N> value;
        for (int i = 0; i < N; i++) value[i] = static_cast<T>(three[i]);
        return value;
    }
};
template <class P> SHIM_QUIET P builtin(Kind kind) {
    using V = std::remove_cv_t<P>;
    const Place& at = *here;
    const unsigned* threes[] = {nullptr,          at.in_grid, at.in_group, at.group, at.group_size,
                                at.dispatched_size, at.grid,    at.groups};
    if (kind <= GROUPS) return from_place<V>::make(threes[kind]);
    const unsigned ones[] = {at.index, at.lane,     at.simdgroup,  at.width,
                             at.simdgroups, at.lane & 3, at.index / 4, (at.group_size[0] * at.group_size[1] * at.group_size[2] + 3) / 4};
    const unsigned one[3] = {ones[kind - INDEX_IN_GROUP], 0, 0};
    return from_place<V>::make(one);
}
template <class P> SHIM_QUIET P argument(const Parameter& parameter, void* const* buffers) {
    if constexpr (std::is_pointer<P>::value) return static_cast<P>(buffers[parameter.buffer]);
    else if constexpr (std::is_reference<P>::value) return *static_cast<std::remove_reference_t<P>*>(buffers[parameter.buffer]);
    else return builtin<P>(parameter.kind);
}
template <class P> constexpr unsigned long least_bytes() {
    using T = std::remove_reference_t<P>;
    if constexpr (std::is_reference<P>::value) return sizeof(T);
    else return 0;
}
template <class... P> struct Signature {
    static constexpr unsigned long sizes[sizeof...(P) + 1] = {least_bytes<P>()..., 0};
    template <class F, size_t... I>
    SHIM_QUIET static void call(F kernel, void* const* buffers, const Parameter* parameters, std::index_sequence<I...>) {
        kernel(argument<P>(parameters[I], buffers)...);
    }
};
template <class... P> Signature<P...> signature(void (*)(P...));
template <class S> struct places;
template <class... P> struct places<Signature<P...>> { using type = std::index_sequence_for<P...>; };
}  // namespace shim

#define SHIM_KERNEL(number, name)                                                                      \
    typedef decltype(shim::signature(::name)) shim_signature_##number;                                   \
    SHIM_QUIET static void shim_call_##number(void* const* buffers, const shim::Parameter* parameters) {          \
        shim_signature_##number::call(::name, buffers, parameters, shim::places<shim_signature_##number>::type()); \
    }
