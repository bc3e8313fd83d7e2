"""How many common English misspellings find the word that was meant in the vocabulary of judged collections, by the layer `fuzzy`.

The lists were written from memory, each before it was run and without looking at any text; of a list those words count that the
collections hold. What went wrong in the first three changed the layer, the fourth was run once, after that. Beside it: the word at
the least distance (insert, drop, replace, swap neighbours), of several the one that is in most passages.

    python jobs/misspellings.py --dataset DIR [DIR …]
"""

import argparse
import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path

if not __package__:  # run as a file: the project's root is where the packages are
    sys.path[:1] = [str(Path(__file__).resolve().parent.parent)]

from jobs.datasets import content_of, find
from shards.fuzzy_levels import MAX_EDITS, near
from shards.fuzzy_vocabulary import Vocabulary

LISTS = {
    "first": """
acheive:achieve acommodate:accommodate adress:address agressive:aggressive aparent:apparent arguement:argument athelete:athlete
auxillary:auxiliary basicly:basically begining:beginning beleive:believe boundry:boundary calender:calendar catagory:category
cemetary:cemetery cheif:chief collegue:colleague comparision:comparison completly:completely concensus:consensus curiousity:curiosity
dependance:dependence desparate:desperate develope:develop diferent:different dissapear:disappear drasticly:drastically ecstacy:ecstasy
enviroment:environment equiptment:equipment exagerate:exaggerate existance:existence experiance:experience explaination:explanation
familar:familiar febuary:february forteen:fourteen freind:friend goverment:government grammer:grammar gaurd:guard harrass:harass
heighth:height humourous:humorous immediatly:immediately independant:independent interupt:interrupt knowlege:knowledge
labratory:laboratory libary:library medeival:medieval miniscule:minuscule neice:niece noticable:noticeable occassion:occasion
parliment:parliament persistant:persistent posession:possession prefered:preferred propoganda:propaganda publically:publicly
reccomend:recommend religous:religious seperate:separate seige:siege sucessful:successful supercede:supersede suprise:surprise
temperture:temperature tommorow:tomorrow truely:truly vaccum:vacuum wierd:weird writting:writing
""",
    "second": """
absense:absence accross:across agression:aggression alege:allege amature:amateur anual:annual apropriate:appropriate artifical:artificial
assasination:assassination avaliable:available bouyant:buoyant buisness:business campain:campaign carribean:caribbean
catagorize:categorize charachter:character circuler:circular comission:commission competance:competence consistant:consistent
controled:controlled critisism:criticism decieve:deceive defendent:defendant dicipline:discipline dilema:dilemma efficency:efficiency
eigth:eighth enterence:entrance extreem:extreme facist:fascist foriegn:foreign fourty:forty generaly:generally hemisfere:hemisphere
hypocracy:hypocrisy imaginery:imaginary incidently:incidentally inteligence:intelligence jewelery:jewelry kernal:kernel lenght:length
magnatude:magnitude mathmatics:mathematics measurment:measurement momento:memento naturaly:naturally nucular:nuclear
oppurtunity:opportunity orignal:original particulary:particularly percieve:perceive permanant:permanent phenomonon:phenomenon
politican:politician practicle:practical presance:presence probaly:probably proccess:process quanity:quantity refering:referring
relevent:relevant responsability:responsibility scedule:schedule similiar:similar sincerly:sincerely speach:speech stregth:strength
sentance:sentence technicly:technically tendancy:tendency thier:their transister:transistor unforseen:unforeseen untill:until
usefull:useful velosity:velocity wether:whether wheras:whereas yeild:yield
""",
    "third": """
abondon:abandon acidentally:accidentally acurate:accurate adolecent:adolescent agravate:aggravate allready:already ambigous:ambiguous
analisys:analysis aniversary:anniversary apperance:appearance archeaology:archaeology asociation:association attendence:attendance
balence:balance benificial:beneficial bizzare:bizarre brillant:brilliant capabilty:capability cathederal:cathedral celcius:celsius
champange:champagne charactor:character cirumstance:circumstance colum:column comparitive:comparative concieve:conceive
confidental:confidential congradulate:congratulate contempory:contemporary convinient:convenient corespondence:correspondence
decison:decision deffinition:definition desease:disease diffrence:difference disasterous:disastrous discribe:describe dominent:dominant
earthquke:earthquake elagant:elegant embarrased:embarrassed emphysyma:emphysema exellent:excellent exersise:exercise
explotation:exploitation fasinating:fascinating frequancy:frequency fundemental:fundamental guidence:guidance higiene:hygiene
hypothosis:hypothesis ilness:illness inflamation:inflammation inhabitents:inhabitants intresting:interesting inteference:interference
jurisdicton:jurisdiction languege:language lisense:license manufactering:manufacturing millitary:military monestary:monastery
mosquitos:mosquitoes negociate:negotiate obsticle:obstacle ocurred:occurred oxigen:oxygen paralel:parallel pasttime:pastime
pennisula:peninsula prehaps:perhaps presedent:president prominant:prominent proffesor:professor protien:protein pyschology:psychology
realy:really recomendation:recommendation resistence:resistance rythmic:rhythmic sattelite:satellite sciense:science
significent:significant simetry:symmetry soverign:sovereign stradegy:strategy sufficent:sufficient sugery:surgery symtom:symptom
theoritical:theoretical therefor:therefore treshold:threshold turbulance:turbulence unecessary:unnecessary varient:variant
vegatation:vegetation visable:visible
""",
    "fourth": """
absorbtion:absorption acumulate:accumulate aluminimum:aluminium aproximate:approximate arangement:arrangement artical:article
astronemy:astronomy atmosfere:atmosphere authorty:authority bibliografy:bibliography bilogical:biological boundery:boundary
carefull:careful catalouge:catalogue cheeper:cheaper classifcation:classification colapse:collapse comitted:committed
compatable:compatible compleatly:completely conection:connection conferance:conference continous:continuous cyclinder:cylinder
databse:database definate:definite democrasy:democracy densitiy:density diagonsis:diagnosis divison:division efect:effect elctron:electron
eletric:electric emporer:emperor equasion:equation expirement:experiment facinate:fascinate feild:field forcast:forecast funtion:function
genral:general geografic:geographic hieght:height imagin:imagine indicies:indices infomation:information instrment:instrument
intellegent:intelligent journel:journal laminer:laminar litature:literature managment:management mecanism:mechanism medecine:medicine
molecuel:molecule moutain:mountain nessecary:necessary nuetral:neutral occurance:occurrence oposite:opposite orgin:origin pattren:pattern
perfomance:performance phisical:physical planatary:planetary presure:pressure privelege:privilege probabillity:probability
procedue:procedure programing:programming radation:radiation reciever:receiver refrence:reference retreival:retrieval rotaion:rotation
shoked:shocked souce:source spesific:specific statistcal:statistical strucure:structure supersanic:supersonic syntehsis:synthesis
teory:theory thermodinamic:thermodynamic tranfer:transfer trasport:transport univeristy:university vaccinaton:vaccination vehical:vehicle
vibraton:vibration visious:viscous volunter:volunteer vortice:vortices wich:which
""",
}


def pairs(text: str) -> list[tuple[str, str]]:
    """(misspelt, meant) of a list."""
    return [(misspelt, meant) for pair in text.split() for misspelt, _, meant in (pair.partition(":"),)]


def vocabulary(folders: list[Path]) -> Vocabulary:
    """The words of all documents of some collections in BEIR layout. Raises BadDataset."""
    from shards.documents import Documents
    from shards.identity import content_hash
    from shards.layers.contract import Resources
    from shards.layers.fuzzy import Fuzzy

    bodies = {content_hash(body): body for folder in folders for body in _bodies(find(folder, "corpus.jsonl"))}
    documents = Documents.pack([(key, body, "prose:english") for key, body in bodies.items()])
    layer = Fuzzy(Fuzzy.Params(), Resources())
    arrays = layer.build(documents, None)  # type: ignore[arg-type]  # it looks at no path
    return layer.collect([(1, layer.statistics(arrays, documents, None))])  # type: ignore[arg-type]


def _bodies(path: Path) -> Iterator[bytes]:
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else open(path, encoding="utf-8") as lines:
        for line in lines:
            yield content_of(json.loads(line))


def by_layer(known: Vocabulary, misspelt: str) -> list[str]:
    """The words that it may stand for, the likeliest first; not itself."""
    return [word for word in known.words(near(known, misspelt, MAX_EDITS, True).numbers) if word != misspelt]


def by_distance(known: Vocabulary, misspelt: str) -> list[str]:
    """The same by distance, then by how many passages hold the word."""
    numbers, distances = known.near(misspelt, MAX_EDITS)
    order = sorted(range(len(numbers)), key=lambda i: (distances[i], -known.frequencies[numbers[i]], numbers[i]))
    return [word for word in known.words(numbers[order]) if word != misspelt]


def places(known: Vocabulary, listed: list[tuple[str, str]], ways=(by_layer, by_distance)) -> list[list[int]]:
    """Of each way, where the meant word stands in its answer, from 1; 0 where it is not there. Of words that are known."""
    found = []
    for way in ways:
        answers = [(meant, way(known, misspelt)) for misspelt, meant in listed if known.frequency_of(meant)]
        found.append([words.index(meant) + 1 if meant in words else 0 for meant, words in answers])
    return found


def main() -> None:
    """Prints, for each list and way, how many words are first, among the first three, and found at all."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--dataset", nargs="+", required=True, type=Path, metavar="DIR", help="collections in BEIR layout, taken together")
    known = vocabulary(p.parse_args().dataset)
    print(f"{len(known.hashes):,} words of {known.n_units:,} passages")
    for name, text in LISTS.items():
        for way, at in zip(("fuzzy", "distance"), places(known, pairs(text)), strict=True):
            three = sum(1 <= place <= 3 for place in at)
            print(f"{name} list, {way}: {at.count(1)} of {len(at)} first, {three} of the first three, {len(at) - at.count(0)} found")


if __name__ == "__main__":
    main()
