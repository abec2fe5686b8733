// Runs the fuzzing target without libFuzzer: on files, or on random bytes for a number of seconds.
//
//     native-fuzz 5            five seconds of random bytes; prints the seed, which repeats the run
//     native-fuzz 5 1234       the same from seed 1234
//     native-fuzz FILE …       files, such as one that libFuzzer found
//
// With NATIVE_FUZZ_TRACE set, the bytes of each round are in the file native-fuzz-crash before they run.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

// Runs the target on each file. Returns the exit status: 1 if a file cannot be read.
int run_files(const std::vector<std::string>& names) {
    for (const std::string& name : names) {
        std::ifstream file(name, std::ios::binary);
        if (!file) {
            std::fprintf(stderr, "cannot read %s\n", name.c_str());
            return 1;
        }
        const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
        LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
    }
    std::printf("%zu files, nothing found\n", names.size());
    return 0;
}

}  // namespace

int main(int count, char** values) {
    const std::vector<std::string> arguments(values + 1, values + count);
    char* end = nullptr;
    const double seconds = arguments.empty() ? 5.0 : std::strtod(arguments[0].c_str(), &end);
    if (end != nullptr && *end != '\0') return run_files(arguments);
    const std::uint64_t seed = arguments.size() > 1 ? std::stoull(arguments[1]) : std::random_device{}();
    std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
    std::fflush(stdout);
    // The bytes of a round depend only on the seed and its number, so that a crash can be repeated without the rounds
    // before it.
    const auto begin = std::chrono::steady_clock::now();
    std::uint64_t round = 0;
    std::vector<std::uint8_t> bytes;
    for (; std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < seconds; ++round) {
        std::mt19937_64 random(seed + round);
        bytes.resize(random() % 8192);
        for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
        if (round % 5 == 0 && !bytes.empty()) {  // of random bytes, hardly any are JSON
            bytes[0] = 0;
            constexpr char kSigns[] = "[]{}\",:\\u0aD8cF ";
            for (std::size_t i = 1; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(kSigns[bytes[i] % 16]);
        }
        if (std::getenv("NATIVE_FUZZ_TRACE") != nullptr) {
            std::ofstream("native-fuzz-crash", std::ios::binary)
                .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
        }
        LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
    }
    std::printf("%llu rounds, nothing found\n", static_cast<unsigned long long>(round));
    return 0;
}
