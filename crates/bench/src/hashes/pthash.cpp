// A C interface of PTHash for `pthash.rs`, which says how to build it.

#include <cstddef>
#include <cstdint>
#include <exception>

#include "pthash.hpp"

namespace {

// The function of the paper: skewed buckets, and pilots in two dictionaries.
typedef pthash::single_phf<pthash::xxhash_128, pthash::skew_bucketer, pthash::dictionary_dictionary, false> function;

}  // namespace

extern "C" {

// Null if there is none.
void* pthash_build(const uint64_t* keys, uint64_t count, double bucket_keys, double load, uint64_t seed) {
    pthash::build_configuration config;
    config.lambda = bucket_keys;
    config.alpha = load;
    config.seed = seed;
    config.minimal = false;
    config.num_threads = 1;
    config.verbose = false;
    function* built = new function();
    try {
        built->build_in_internal_memory(keys, count, config);
    } catch (const std::exception&) {
        delete built;
        return nullptr;
    }
    return built;
}

uint64_t pthash_bits(const void* built) { return static_cast<const function*>(built)->num_bits(); }

uint64_t pthash_slots(const void* built) { return static_cast<const function*>(built)->table_size(); }

uint64_t pthash_slot(const void* built, uint64_t key) { return (*static_cast<const function*>(built))(key); }

void pthash_destroy(void* built) { delete static_cast<function*>(built); }
}
